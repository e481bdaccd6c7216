/* What a tensor is: its dispatch keys, its gradient, its address, device, dtype, sizes and strides. */

/* ------------------------------------------------------------------------------------ asked of torch, or read there */

/* Where `calibrate` has found the dispatch-key set it is read there; else the two calls that key.py makes are made. */
static int keyset_by_calls(PyObject *tensor, uint64_t *keyset)
{
    PyObject *keys = PyObject_CallOneArg(torch.dispatch_keys, tensor);
    PyObject *raw = keys == NULL ? NULL : PyObject_CallMethodNoArgs(keys, torch.raw_repr);
    if (raw != NULL)
        *keyset = PyLong_AsUnsignedLongLongMask(raw);
    Py_XDECREF(raw);
    Py_XDECREF(keys);
    return raw != NULL && !PyErr_Occurred();
}

static int keyset_of(PyObject *tensor, uint64_t *keyset)
{
    if (torch.impl_at == 0)
        return keyset_by_calls(tensor, keyset);
    const char *impl;
    memcpy(&impl, (const char *)tensor + torch.impl_at, sizeof impl);
    if (impl == NULL)
        return 0;
    memcpy(keyset, impl + torch.keyset_at, sizeof *keyset);
    return 1;
}

/* DLPack shows integers of less than eight bits as those of eight: for these torch is asked. */
static int has_small_dtype(Dtype dtype)
{
    enum { SIGNED, UNSIGNED };
    return dtype.bits <= 8 && (dtype.code == SIGNED || dtype.code == UNSIGNED);
}

static int flag_of(PyGetSetDef *attribute, PyObject *tensor, int *flag)
{
    PyObject *answer = attribute->get(tensor, attribute->closure);
    *flag = answer == Py_True;
    Py_XDECREF(answer);
    return answer != NULL;
}

/* Past the attribute, where its function is known: it asks for modes and overrides before, of which there are none. */
static int requires_grad_of(PyObject *tensor, int *requires_grad)
{
    if (memory.size == 0)
        return flag_of(torch.requires_grad, tensor, requires_grad);
    *requires_grad = memory.requires_grad(impl_of(tensor));
    return 1;
}

/* 0 without a gradient, 1 for a leaf, 2 for what was computed. */
static int grad_of(PyObject *tensor, uint64_t *grad)
{
    int requires_grad, is_leaf = 0;
    if (!requires_grad_of(tensor, &requires_grad)
        || (requires_grad && !flag_of(torch.is_leaf, tensor, &is_leaf)))
        return 0;
    *grad = requires_grad ? (uint64_t)(2 - is_leaf) : 0;
    return 1;
}

/* -------------------------------------------------------------------------------------------- shown without headers */

/*
 * The exchange API shows all of it in one call, which takes forty nanoseconds and more. torch's C shim, whose ABI is
 * kept stable for compiled models, answers one question in two to four. Its handle is where a tensor keeps the pointer
 * to its implementation, which `calibrate` has found. What the shim cannot answer it prints; so it is asked only about
 * tensors of a dispatch-key set of which one was shown by both alike, and otherwise the exchange API is.
 */
typedef struct {
    int32_t (*data)(void *handle, void **answer);
    int32_t (*device_type)(void *handle, int32_t *answer);
    int32_t (*device_index)(void *handle, int32_t *answer);
    int32_t (*dtype)(void *handle, int32_t *answer);
    int32_t (*dim)(void *handle, int64_t *answer);
    int32_t (*sizes)(void *handle, int64_t **answer);
    int32_t (*strides)(void *handle, int64_t **answer);
    int32_t (*offset)(void *handle, int64_t *answer);       /* in elements, of the storage */
} Shim;

enum { MOST_DTYPES = 64, MOST_KEYSETS = 32 };
enum { CPU_OF_TORCH, CUDA_OF_TORCH };
enum { CPU = 1, CUDA };                 /* of DLPack */

typedef struct {
    uint64_t keyset;
    int alike;                          /* whether both showed the first such tensor alike */
} Compared;

static struct {
    int in_use;
    Shim ask;
    Dtype dtypes[MOST_DTYPES];          /* by torch's number; without bits where none was met */
    Compared compared[MOST_KEYSETS];
    int count;
} shim;

#ifdef __linux__
static int load_shim(void)
{
    void *library = dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD);     /* it stays: torch has it */
    if (library == NULL)
        return 0;
    struct {
        const char *name;
        void *place;
    } functions[] = {
        {"aoti_torch_get_data_ptr", &shim.ask.data},
        {"aoti_torch_get_device_type", &shim.ask.device_type},
        {"aoti_torch_get_device_index", &shim.ask.device_index},
        {"aoti_torch_get_dtype", &shim.ask.dtype},
        {"aoti_torch_get_dim", &shim.ask.dim},
        {"aoti_torch_get_sizes", &shim.ask.sizes},
        {"aoti_torch_get_strides", &shim.ask.strides},
        {"aoti_torch_get_storage_offset", &shim.ask.offset},
    };
    int found = 1;
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        void *function = dlsym(library, functions[i].name);
        memcpy(functions[i].place, &function, sizeof function);
        found = found && function != NULL;
    }
    return found;
}
#else
static int load_shim(void)
{
    return 0;
}
#endif

/* Nothing has been compared yet. */
static void use_shim(int wanted)
{
    memset(&shim, 0, sizeof shim);
    shim.in_use = wanted && load_shim();
    memory.size = 0;
}

static Compared *compared(uint64_t keyset)
{
    for (int i = 0; i < shim.count; i++)
        if (shim.compared[i].keyset == keyset)
            return &shim.compared[i];
    return NULL;
}

static int device_by_shim(void *handle, Device *device)
{
    int32_t type, index = 0;
    if (shim.ask.device_type(handle, &type) != 0 || (type != CPU_OF_TORCH && type != CUDA_OF_TORCH))
        return 0;
    if (type == CUDA_OF_TORCH && shim.ask.device_index(handle, &index) != 0)
        return 0;
    *device = (Device){type == CUDA_OF_TORCH ? CUDA : CPU, index};
    return 1;
}

static int dtype_by_shim(void *handle, Dtype *dtype)
{
    int32_t number;
    if (shim.ask.dtype(handle, &number) != 0 || number < 0 || number >= MOST_DTYPES)
        return 0;
    *dtype = shim.dtypes[number];
    return dtype->bits != 0;
}

/* Without sizes and strides unless they are asked for; the address of a tensor without elements is NULL. */
static int view_by_shim(PyObject *tensor, View *view, int sized)
{
    void *handle = (char *)tensor + torch.impl_at;
    int64_t dim;
    view->sizes = view->strides = NULL;
    view->byte_offset = 0;
    if (!dtype_by_shim(handle, &view->dtype) || !device_by_shim(handle, &view->device)
        || shim.ask.dim(handle, &dim) != 0)
        return 0;
    view->ndim = (int32_t)dim;
    if (sized && (shim.ask.sizes(handle, &view->sizes) != 0 || shim.ask.strides(handle, &view->strides) != 0))
        return 0;
    return shim.ask.data(handle, &view->data) == 0;
}

static int same_numbers(const int64_t *some, const int64_t *others, int32_t count)
{
    return count == 0 || memcmp(some, others, (size_t)count * sizeof *some) == 0;
}

static int are_alike(const View *one, const View *other)
{
    return (char *)one->data + one->byte_offset == (char *)other->data + other->byte_offset
        && memcmp(&one->device, &other->device, sizeof one->device) == 0
        && memcmp(&one->dtype, &other->dtype, sizeof one->dtype) == 0 && one->ndim == other->ndim
        && same_numbers(one->sizes, other->sizes, one->ndim) && same_numbers(one->strides, other->strides, one->ndim);
}

/* The number that torch has for a dtype, once and for all. */
static void learn_dtype(PyObject *tensor, Dtype dtype)
{
    int32_t number;
    if (shim.ask.dtype((char *)tensor + torch.impl_at, &number) == 0 && number >= 0 && number < MOST_DTYPES
        && shim.dtypes[number].bits == 0)
        shim.dtypes[number] = dtype;
}

/* Compare what both show of a tensor with these keys, and learn its dtype; one without an address says nothing. */
static void compare(PyObject *tensor, uint64_t keyset, const View *shown)
{
    Compared *before = compared(keyset);
    int decided = before != NULL ? !before->alike : shim.count == MOST_KEYSETS;
    int comparable = shown->data != NULL && (shown->ndim == 0 || shown->strides != NULL)
        && (shown->device.type == CPU || shown->device.type == CUDA);
    if (decided || !comparable)
        return;
    View view;
    learn_dtype(tensor, shown->dtype);
    int alike = view_by_shim(tensor, &view, 1) && are_alike(&view, shown);
    if (before == NULL)
        before = &shim.compared[shim.count++];
    *before = (Compared){keyset, alike};
}

/*
 * Of some tensors torch shows none, and makes an error of that, which takes a millisecond: of sparse ones, say. Where it
 * was so of a few of a dispatch-key set of which none was compared, it is asked again now and then.
 */
enum { MOST_UNSHOWN = 4, FEW_UNSHOWN = 8, SHOWN_AGAIN = 256 };

static struct unshown {
    uint64_t keyset;
    uint32_t times;
} unshown[MOST_UNSHOWN];

static int shown(PyObject *tensor, uint64_t keyset, View *view)
{
    static uint32_t kinds;
    int kind = 0;
    while (kind < MOST_UNSHOWN && unshown[kind].keyset != keyset)
        kind++;
    uint32_t times = kind < MOST_UNSHOWN ? ++unshown[kind].times : 1;
    if (times > FEW_UNSHOWN && times % SHOWN_AGAIN != 0)
        return 0;
    int is_shown = torch.exchange->view_of(tensor, view) == 0;
    if (is_shown && kind < MOST_UNSHOWN)
        unshown[kind].times = 0;
    else if (!is_shown && kind == MOST_UNSHOWN)
        unshown[kinds++ % MOST_UNSHOWN] = (struct unshown){keyset, times};
    return is_shown;
}

/* Whether there is one. It owns nothing: sizes and strides, maybe NULL unless asked for, point into the tensor. */
static int view_of(PyObject *tensor, uint64_t keyset, View *view, int sized)
{
    if (!shim.in_use)
        return torch.exchange->view_of(tensor, view) == 0;
    const Compared *before = compared(keyset);
    if (before != NULL && before->alike && view_by_shim(tensor, view, sized))
        return 1;
    if (before == NULL ? !shown(tensor, keyset, view) : torch.exchange->view_of(tensor, view) != 0)
        return 0;
    compare(tensor, keyset, view);
    return 1;
}

/* In elements, from the beginning of the storage. Only torch's own code runs. */
static int offset_of(PyObject *tensor, uint64_t keyset, int64_t *offset)
{
    const Compared *before = shim.in_use ? compared(keyset) : NULL;
    if (before != NULL && before->alike)
        return shim.ask.offset((char *)tensor + torch.impl_at, offset) == 0;
    PyObject *answer = PyObject_CallOneArg(torch.storage_offset, tensor);
    *offset = answer == NULL ? -1 : PyLong_AsLongLong(answer);
    Py_XDECREF(answer);
    PyErr_Clear();
    return *offset >= 0;
}

/*
 * Where a storage was freed, a tensor's place in it is all there is of an address. Most are larger than any such place;
 * where Python stands at a fixed address, those of small tensors are not.
 */
static int may_be_freed(PyObject *tensor, uint64_t keyset, const View *view, uint64_t start)
{
    enum { FREED_BELOW_BITS = 36 };
    int64_t offset;
    if (start >> FREED_BELOW_BITS != 0)
        return 0;
    uint64_t bytes = ((uint64_t)view->dtype.bits * view->dtype.lanes + 7) / 8;
    return !offset_of(tensor, keyset, &offset) || start == (uint64_t)offset * bytes;
}

static uint64_t elements_of(const View *view)
{
    uint64_t count = 1;
    for (int i = 0; i < view->ndim; i++)
        count *= (uint64_t)view->sizes[i];
    return count;
}

/* One after the last address, as tree.span has it. */
static uint64_t end_of(const View *view, uint64_t start)
{
    uint64_t last = 0, bytes = ((uint64_t)view->dtype.bits * view->dtype.lanes + 7) / 8;
    for (int i = 0; i < view->ndim; i++)
        last += (uint64_t)((view->sizes[i] - 1) * view->strides[i]);
    return elements_of(view) == 0 ? start : start + (last + 1) * bytes;
}

/* ----------------------------------------------------------------------------------------- what may change in place */

/* All of a tensor that guards ask for: an assignment to `data`, or an operation in place, may change it. */
typedef struct {
    PyTypeObject *type;
    PyObject *names;                    /* its dict: a tensor has one only where somebody has set an attribute */
    uint64_t keyset;
    int requires_grad;
    PyObject *small;                    /* its dtype, where DLPack shows several as one; dtypes live for ever */
    View view;
} Metadata;

/* 0 where torch does not show it. It owns nothing. */
static int metadata_of(PyObject *tensor, Metadata *now)
{
    now->type = Py_TYPE(tensor);
    now->names = instance_dict(tensor);
    now->small = NULL;
    if ((now->type != torch.tensor && now->type != torch.parameter) || !keyset_of(tensor, &now->keyset)
        || !requires_grad_of(tensor, &now->requires_grad) || !view_of(tensor, now->keyset, &now->view, 1)
        || (now->view.ndim != 0 && now->view.strides == NULL))
        return 0;
    if (has_small_dtype(now->view.dtype)) {
        now->small = torch.dtype_of->get(tensor, torch.dtype_of->closure);
        Py_XDECREF(now->small);
        return now->small != NULL;
    }
    return 1;
}

/* `numbers` are the sizes and then the strides that it had: where `then` has them may be gone. */
static int same_metadata(const Metadata *now, const Metadata *then, const int64_t *numbers)
{
    int32_t ndim = now->view.ndim;
    return now->type == then->type && now->names == then->names && now->keyset == then->keyset
        && now->requires_grad == then->requires_grad && now->small == then->small && ndim == then->view.ndim
        && memcmp(&now->view.dtype, &then->view.dtype, sizeof now->view.dtype) == 0
        && memcmp(&now->view.device, &then->view.device, sizeof now->view.device) == 0
        && same_numbers(now->view.sizes, numbers, ndim) && same_numbers(now->view.strides, numbers + ndim, ndim);
}

/* What `same_memory` compares, beside the metadata. */
typedef struct {
    PyObject *const *names;             /* where the tensor keeps its dict */
    const char *impl;
    int words_at;                       /* of what stood there then; negative where that does not tell all */
} Memory;

/* For `same_memory` later; the words go behind others. 0 where memory is out. */
static int note_memory(PyObject *tensor, const View *view, Array *words, Memory *noted)
{
    *noted = (Memory){dict_place(tensor), NULL, -1};
    if (memory.size == 0 || noted->names == NULL || !tells_all(impl_of(tensor), view))
        return 1;
    *noted = (Memory){noted->names, impl_of(tensor), words->count};
    for (Py_ssize_t at = 0; at < memory.size; at += (Py_ssize_t)sizeof(int64_t)) {
        int64_t *word = append(words, sizeof *word);
        if (word == NULL)
            return 0;
        memcpy(word, noted->impl + memory.at + at, sizeof *word);
    }
    return 1;
}

/* Whether nothing at all has changed. Where something has, it may be nothing that guards ask for. */
static int same_memory(PyObject *tensor, const Memory *noted, const Metadata *then, const int64_t *words)
{
    return memory.size != 0 && noted->words_at >= 0 && Py_TYPE(tensor) == then->type && *noted->names == then->names
        && impl_of(tensor) == noted->impl
        && memcmp(noted->impl + memory.at, words + noted->words_at, (size_t)memory.size) == 0
        && memory.requires_grad(noted->impl) == then->requires_grad;
}

PyDoc_STRVAR(asks_shim_doc, "asks_shim()\n--\n\n"
    "Of how many dispatch-key sets tensors are looked at by torch's C shim.");

static PyObject *asks_shim(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
{
    long alike = 0;
    for (int i = 0; i < shim.count; i++)
        alike += shim.compared[i].alike;
    return PyLong_FromLong(alike);
}
