/* What torch gives without headers: the DLPack exchange API, and the C functions behind its Python functions. */

/* ------------------------------------------------------------------------------------- the DLPack exchange API, 1.x */

typedef struct {
    int32_t type, index;
} Device;

typedef struct {
    uint8_t code, bits;
    uint16_t lanes;
} Dtype;

typedef struct {
    void *data;
    Device device;
    int32_t ndim;
    Dtype dtype;
    int64_t *sizes;
    int64_t *strides;
    uint64_t byte_offset;
} View;

typedef struct Header {
    uint32_t major, minor;
    struct Header *previous;
} Header;

typedef struct {
    Header header;
    int (*allocate)(void);              /* not used, and declared only for its place */
    int (*managed_from_object)(void);
    int (*managed_to_object)(void);
    int (*view_of)(void *object, View *view);   /* owns nothing: sizes and strides point into the tensor */
    int (*work_stream)(int32_t device_type, int32_t device_index, void **stream);
} Exchange;

/* --------------------------------------------------------------------------------------------- what torch has given */

/* A question to torch. Where it is a C function without arguments it is called directly, past Python's call. */
typedef struct {
    PyObject *question;                 /* a tuple: the function, then its arguments */
    PyCFunction direct;
    PyObject *self;
} Probe;

static PyObject *ask(const Probe *probe)
{
    if (probe->direct != NULL)
        return probe->direct(probe->self, NULL);
    PyObject *const *parts = &PyTuple_GET_ITEM(probe->question, 0);
    return PyObject_Vectorcall(parts[0], parts + 1, (size_t)PyTuple_GET_SIZE(probe->question) - 1, NULL);
}

enum { MOST_PROBES = 16 };

typedef struct {
    int count;
    Probe probes[MOST_PROBES];
} Probes;

/* Bound once, for the process, and never let go. */
static struct {
    const Exchange *exchange;
    PyTypeObject *tensor, *parameter, *base, *module;   /* base: what every kind of tensor is */
    PyTypeObject *size, *device, *dtype, *layout, *memory_format;
    PyGetSetDef *requires_grad, *is_leaf, *dtype_of;
    Probes no_modes;                       /* what makes a call a bypass, or is rare: each must answer "nothing" */
    Probes keyed;                       /* what stands in the key by value */
    Probe any_autocast, autocast_cache, deterministic, warn_only;
    PyObject *autocast_devices, *autocast_enabled, *autocast_dtype;
    PyObject *determinism;              /* has fill_uninitialized_memory */
    PyObject *compiler_names, *forward_names;   /* the names of torch.compiler and of torch.autograd.forward_ad */
    PyObject *hook_tables;              /* a tuple of dicts */
    PyObject *dispatch_keys, *storage_offset;
    Py_ssize_t impl_at, keyset_at;      /* where a tensor keeps its dispatch-key set; 0 where that is not known */
    PyObject *is_compiling_flag, *current_level, *raw_repr, *fill_memory, *dataclass_fields;
    PyObject *calls, *value, *called, *launched;    /* names, too */
} torch;
