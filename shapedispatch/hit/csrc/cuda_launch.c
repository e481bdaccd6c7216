/* The launch of a compiled kernel by the CUDA driver. */

/*
 * A compiled kernel whose launch is known but for the grid, the stream and the arguments. Only kernels that need
 * nothing else of the driver have a launcher (no clusters, no cooperative grid, no programmatic launch, no scratch
 * memory), and only where the driver confirms the place and size of every parameter.
 */
enum { MOST_PARAMETERS = 128, MOST_BYTES = 1024 };

/* The driver's functions, found when first asked for: this file is built and loaded without CUDA. */
static struct {
    int (*launch)(void *function, unsigned x, unsigned y, unsigned z, unsigned threads_x, unsigned threads_y,
        unsigned threads_z, unsigned shared, void *stream, void **parameters, void **extra);
    int (*parameter_info)(void *function, size_t index, size_t *offset, size_t *size);
    int (*error_text)(int error, const char **text);
    int (*work_stream)(int32_t device_type, int32_t device_index, void **stream);   /* torch's */
    int (*is_capturing)(void *stream, int *status);     /* may be missing: then no stream can be */
    int (*current_context)(void **context);     /* the thread's: a device's, or none before it has used CUDA */
} driver;

enum { DRIVER_FUNCTIONS = 6 };
_Static_assert(sizeof driver == DRIVER_FUNCTIONS * sizeof(uint64_t), "functions are given by their addresses");

/* What a parameter is made of: an address, a signed or unsigned integer, a floating-point number, or zeros. */
enum { ADDRESS = 'p', SIGNED_INT = 'i', UNSIGNED_INT = 'u', REAL = 'f', ZEROS = '0' };

typedef struct {
    size_t offset, size;
    int kind;
    Py_ssize_t source;                  /* the place of its value in a call's values */
} Parameter;

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *name;
    PyObject *meta;                     /* a dict: what configs and heuristics give, by name */
    PyObject *answer;                   /* what a launch returns */
    void *function, *context;           /* the second: the device's, in which the function was loaded */
    unsigned threads, shared;
    int device;
    unsigned grid[3];                   /* the decorator's; the first is NO_GRID where it gives none */
    Py_ssize_t count, values;           /* parameters, and values that a call must have at least */
    Parameter parameters[MOST_PARAMETERS];
} CudaLauncher;

enum { NO_GRID = UINT32_MAX };

static const char *driver_says(int error)
{
    const char *text = NULL;
    int is_known = driver.error_text != NULL && driver.error_text(error, &text) == 0 && text != NULL;
    return is_known ? text : "unknown error";
}

static int address_of(PyObject *value, uint64_t *address)
{
    View view;
    *address = 0;
    if (value == Py_None)
        return 1;
    if (PyLong_Check(value)) {
        *address = PyLong_AsUnsignedLongLong(value);
        return *address != (uint64_t)-1 || !PyErr_Occurred();
    }
    if (Py_TYPE(value) != torch.tensor && Py_TYPE(value) != torch.parameter)
        return PyErr_Format(PyExc_TypeError, "a %s is no address", Py_TYPE(value)->tp_name) != NULL;
    if (torch.exchange == NULL || torch.exchange->view_of(value, &view) != 0)
        return 0;
    *address = (uint64_t)(uintptr_t)view.data + view.byte_offset;
    return 1;
}

static int fits(uint64_t number, size_t size, int is_signed)
{
    unsigned spare = 64 - 8 * (unsigned)size;
    return is_signed ? (uint64_t)((int64_t)(number << spare) >> spare) == number : number << spare >> spare == number;
}

static int integer_of(PyObject *value, const Parameter *parameter, uint64_t *bits)
{
    int is_signed = parameter->kind == SIGNED_INT;
    *bits = is_signed ? (uint64_t)PyLong_AsLongLong(value) : PyLong_AsUnsignedLongLong(value);
    if (*bits == (uint64_t)-1 && PyErr_Occurred())
        return 0;
    return fits(*bits, parameter->size, is_signed)
        || PyErr_Format(PyExc_OverflowError, "%R does not fit %zu bytes", value, parameter->size) != NULL;
}

static int real_of(PyObject *value, size_t size, uint64_t *bits)
{
    double number = PyFloat_AsDouble(value);
    if (number == -1.0 && PyErr_Occurred())
        return 0;
    float narrow = (float)number;
    memcpy(bits, size == sizeof narrow ? (void *)&narrow : (void *)&number, size);
    return 1;
}

/* The bits of one parameter, the low bytes first: CUDA's hosts are little-endian. */
static int bits_of(PyObject *value, const Parameter *parameter, uint64_t *bits)
{
    switch (parameter->kind) {
    case ADDRESS:
        return address_of(value, bits);
    case REAL:
        return real_of(value, parameter->size, bits);
    default:
        return integer_of(value, parameter, bits);
    }
}

/* Where the parameter is passed from. */
static void *pass_bits(char *buffer, const Parameter *parameter, uint64_t bits)
{
    void *place = buffer + parameter->offset;
    if (parameter->size == sizeof bits)
        memcpy(place, &bits, sizeof bits);      /* a store; of a size that is only known now it is a call */
    else
        memcpy(place, &bits, parameter->size);
    return place;
}

static int fill(const CudaLauncher *launcher, PyObject *values, char *buffer, void **places)
{
    for (Py_ssize_t i = 0; i < launcher->count; i++) {
        const Parameter *parameter = &launcher->parameters[i];
        uint64_t bits = 0;
        if (parameter->kind != ZEROS && !bits_of(PyTuple_GET_ITEM(values, parameter->source), parameter, &bits))
            return 0;
        places[i] = pass_bits(buffer, parameter, bits);
    }
    return 1;
}

/* The first three of a tuple; those that are left out are 1. Where one cannot be read an error may be set. */
static int read_sizes(PyObject *items, unsigned sizes[3])
{
    Py_ssize_t count = PyTuple_GET_SIZE(items);
    int read = count > 0;
    sizes[0] = sizes[1] = sizes[2] = 1;
    for (Py_ssize_t i = 0; read && i < 3 && i < count; i++) {
        PyObject *number = PyNumber_Index(PyTuple_GET_ITEM(items, i));      /* numpy's integers, say */
        long long size = number == NULL ? -1 : PyLong_AsLongLong(number);
        Py_XDECREF(number);
        read = size >= 0 && size <= INT32_MAX;
        sizes[i] = (unsigned)size;
    }
    return read;
}

static int grid_of(PyObject *grid, unsigned sizes[3])
{
    if (!PyTuple_CheckExact(grid) || PyTuple_GET_SIZE(grid) < 1 || PyTuple_GET_SIZE(grid) > 3)
        return PyErr_Format(PyExc_TypeError, "a grid is a tuple of one to three sizes, not %R", grid) != NULL;
    if (read_sizes(grid, sizes))
        return 1;
    if (!PyErr_Occurred())
        PyErr_Format(PyExc_ValueError, "%R is no grid", grid);
    return 0;
}

/* The driver's answer. The GIL is given back meanwhile: the driver waits where its queue is full. */
static int launch_at(const CudaLauncher *launcher, const unsigned sizes[3], void *stream, void **places)
{
    int error;
    Py_BEGIN_ALLOW_THREADS
    error = driver.launch(launcher->function, sizes[0], sizes[1], sizes[2], launcher->threads, 1, 1, launcher->shared,
        stream, places, NULL);
    Py_END_ALLOW_THREADS
    return error;
}

/* Whether kernels are launched on the launcher's device now, by this thread. */
static int is_current(const CudaLauncher *launcher)
{
    void *context = NULL;
    return driver.current_context(&context) == 0 && context == launcher->context;
}

static int stream_of(const CudaLauncher *launcher, void **stream)
{
    if (driver.work_stream(CUDA, launcher->device, stream) == 0)
        return 1;
    if (!PyErr_Occurred())
        PyErr_SetString(PyExc_RuntimeError, "torch gives no stream");
    return 0;
}

static PyObject *launcher_vectorcall(PyObject *self, PyObject *const *call, size_t flags, PyObject *names)
{
    const CudaLauncher *launcher = (CudaLauncher *)self;
    uint64_t buffer[MOST_BYTES / sizeof(uint64_t)];
    void *places[MOST_PARAMETERS], *stream = NULL;
    unsigned sizes[3];
    if (PyVectorcall_NARGS(flags) != 2 || names != NULL || !PyTuple_CheckExact(call[1])
        || PyTuple_GET_SIZE(call[1]) < launcher->values)
        return PyErr_Format(PyExc_TypeError, "a launch of %U takes a grid and a tuple of %zd values", launcher->name,
            launcher->values);
    if (!grid_of(call[0], sizes) || !fill(launcher, call[1], (char *)buffer, places))
        return NULL;
    if (sizes[0] == 0 || sizes[1] == 0 || sizes[2] == 0)
        Py_RETURN_TRUE;     /* as Triton has it: nothing to do is done */
    if (!is_current(launcher))
        Py_RETURN_FALSE;
    if (!stream_of(launcher, &stream))
        return NULL;
    int error = launch_at(launcher, sizes, stream, places);
    if (error == 0)
        Py_RETURN_TRUE;
    return PyErr_Format(PyExc_RuntimeError,
        "the CUDA driver refused to launch %U\n  grid = %R\n  threads = %u\n  shared = %u bytes\n  arguments = %R\n"
        "CUDA error %d: %s", launcher->name, call[0], launcher->threads, launcher->shared, call[1], error,
        driver_says(error));
}

/* The driver says where the parameter is, and must have it of this size. */
static int confirm(const CudaLauncher *launcher, Py_ssize_t i, Parameter *parameter)
{
    size_t size = 0;
    int error = driver.parameter_info(launcher->function, (size_t)i, &parameter->offset, &size);
    if (error == 0 && size == parameter->size && parameter->offset + size <= MOST_BYTES)
        return 1;
    return PyErr_Format(PyExc_ValueError, "parameter %zd of %U takes %zu bytes, and %zu are to be passed (%s)", i,
        launcher->name, size, parameter->size, error == 0 ? "the driver knows it" : driver_says(error)) != NULL;
}

static int is_kind_of_size(int kind, Py_ssize_t size)
{
    if (kind == ADDRESS)
        return size == 8;
    if (kind == REAL)
        return size == 4 || size == 8;
    return (kind == SIGNED_INT || kind == UNSIGNED_INT || kind == ZEROS)
        && (size == 1 || size == 2 || size == 4 || size == 8);
}

static int take_parameter(CudaLauncher *launcher, Py_ssize_t i, PyObject *given_parameter)
{
    Parameter *parameter = &launcher->parameters[i];
    Py_ssize_t size;
    if (!PyArg_ParseTuple(given_parameter, "Cnn", &parameter->kind, &size, &parameter->source))
        return 0;
    if (!is_kind_of_size(parameter->kind, size) || parameter->source < 0)
        return PyErr_Format(PyExc_ValueError, "%R is no parameter", given_parameter) != NULL;
    parameter->size = (size_t)size;
    if (parameter->kind != ZEROS && parameter->source >= launcher->values)
        launcher->values = parameter->source + 1;
    return confirm(launcher, i, parameter);
}

static int take_parameters(CudaLauncher *launcher, PyObject *parameters)
{
    size_t offset, size;
    launcher->count = PyTuple_GET_SIZE(parameters);
    if (launcher->count > MOST_PARAMETERS)
        return PyErr_Format(PyExc_ValueError, "%U takes more than %d parameters", launcher->name, MOST_PARAMETERS)
            != NULL;
    for (Py_ssize_t i = 0; i < launcher->count; i++)
        if (!take_parameter(launcher, i, PyTuple_GET_ITEM(parameters, i)))
            return 0;
    if (driver.parameter_info(launcher->function, (size_t)launcher->count, &offset, &size) != 0)
        return 1;                       /* the first that the driver does not know says how many there are */
    return PyErr_Format(PyExc_ValueError, "%U takes more than the %zd parameters that are to be passed",
        launcher->name, launcher->count) != NULL;
}

static PyObject *launcher_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"name", "function", "threads", "shared", "device", "parameters", "grid", "meta", "answer",
        NULL};
    PyObject *name, *parameters, *grid = Py_None, *meta = NULL, *answer = Py_None;
    unsigned long long function;
    CudaLauncher *launcher = (CudaLauncher *)type->tp_alloc(type, 0);
    if (launcher == NULL
        || !PyArg_ParseTupleAndKeywords(args, kwargs, "UKIIiO!|OO!O", names, &name, &function, &launcher->threads,
            &launcher->shared, &launcher->device, &PyTuple_Type, &parameters, &grid, &PyDict_Type, &meta, &answer)) {
        Py_XDECREF(launcher);
        return NULL;
    }
    launcher->vectorcall = launcher_vectorcall;
    launcher->name = Py_NewRef(name);
    launcher->function = (void *)(uintptr_t)function;
    launcher->grid[0] = NO_GRID;
    launcher->meta = Py_XNewRef(meta);
    launcher->answer = Py_NewRef(answer);
    if (driver.launch == NULL || driver.work_stream == NULL || driver.current_context == NULL)
        PyErr_Format(PyExc_RuntimeError, "there is no driver to launch %U with", name);
    else if (driver.current_context(&launcher->context) != 0 || launcher->context == NULL)
        PyErr_Format(PyExc_RuntimeError, "no device is current to launch %U on", name);
    if (PyErr_Occurred() || !take_parameters(launcher, parameters)
        || (grid != Py_None && !grid_of(grid, launcher->grid)))
        Py_CLEAR(launcher);
    return (PyObject *)launcher;
}

static int launcher_traverse(PyObject *self, visitproc visit, void *arg)
{
    return visit_references(REFERENCES((CudaLauncher *)self, name, answer), visit, arg);
}

/* What a launch returns is never NULL: that would read as "Python is to launch" after C has. */
static int launcher_clear(PyObject *self)
{
    Py_CLEAR(((CudaLauncher *)self)->meta);
    Py_XSETREF(((CudaLauncher *)self)->answer, Py_NewRef(Py_None));
    return 0;
}

static void launcher_dealloc(PyObject *self)
{
    PyObject_GC_UnTrack(self);
    clear_references(REFERENCES((CudaLauncher *)self, name, answer));
    Py_TYPE(self)->tp_free(self);
}

static PyMemberDef launcher_members[] = {
    {"name", Py_T_OBJECT_EX, offsetof(CudaLauncher, name), Py_READONLY, "the kernel's"},
    {"__vectorcalloffset__", Py_T_PYSSIZET, offsetof(CudaLauncher, vectorcall), Py_READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyTypeObject CudaLauncherType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "shapedispatch.hit._native.CudaLauncher",
    .tp_doc = "CudaLauncher(name, function, threads, shared, device, parameters, grid=None, meta=None, answer=None)\n"
              "--\n\nlauncher(grid, values) launches a loaded kernel on the current stream of the device that is\n"
              "current when the launcher is made; False where it is not, or this thread has not used CUDA.\n"
              "A parameter is (kind, bytes, place of its value), a kind one of p (address, tensor or None), i, u, f\n"
              "and 0 (zeros). Raises ValueError where the driver knows the parameters otherwise, RuntimeError naming\n"
              "kernel and call where it refuses a launch.",
    .tp_basicsize = sizeof(CudaLauncher),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_new = launcher_new,
    .tp_dealloc = launcher_dealloc,
    .tp_traverse = launcher_traverse,
    .tp_clear = launcher_clear,
    .tp_call = PyVectorcall_Call,
    .tp_vectorcall_offset = offsetof(CudaLauncher, vectorcall),
    .tp_members = launcher_members,
};

/* 1 with the driver's functions found, and torch's for the stream; 0 with an error set. */
static int find_driver(void)
{
#ifdef _WIN32
    return PyErr_Format(PyExc_OSError, "the CUDA driver is not looked for on Windows") != NULL;
#else
    static const struct {
        const char *name, *tells;       /* the second: what cannot be done without */
    } functions[DRIVER_FUNCTIONS] = {
        {"cuLaunchKernel", "a kernel's parameters (cuFuncGetParamInfo)"},
        {"cuFuncGetParamInfo", "a kernel's parameters (cuFuncGetParamInfo)"},
        {"cuGetErrorString", NULL},
        {NULL, NULL},
        {"cuStreamIsCapturing", "of captures (cuStreamIsCapturing)"},
        {"cuCtxGetCurrent", "what is current (cuCtxGetCurrent)"},
    };
    void *found[DRIVER_FUNCTIONS] = {NULL}, *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == NULL)
        return PyErr_Format(PyExc_OSError, "there is no CUDA driver (%s)", dlerror()) != NULL;
    for (int i = 0; i < DRIVER_FUNCTIONS; i++) {
        found[i] = functions[i].name == NULL ? NULL : dlsym(library, functions[i].name);
        if (found[i] == NULL && functions[i].tells != NULL)
            return PyErr_Format(PyExc_OSError, "this CUDA driver does not tell %s", functions[i].tells) != NULL;
    }
    memcpy(&driver, found, sizeof driver);
    driver.work_stream = torch.exchange == NULL ? NULL : torch.exchange->work_stream;
    return 1;
#endif
}

PyDoc_STRVAR(use_driver_doc, "use_driver(functions=None, /)\n--\n\n"
    "Find the CUDA driver; raises OSError where there is none that tells a kernel's parameters. Tests give the\n"
    "addresses of functions in its place, in the order of `driver`; 0 means none.");

static PyObject *use_driver(PyObject *Py_UNUSED(module), PyObject *args)
{
    unsigned long long at[DRIVER_FUNCTIONS];
    if (PyTuple_GET_SIZE(args) == 0)
        return find_driver() ? Py_NewRef(Py_None) : NULL;
    if (!PyArg_ParseTuple(args, "(KKKKKK)", &at[0], &at[1], &at[2], &at[3], &at[4], &at[5]))
        return NULL;
    memcpy(&driver, at, sizeof driver);
    Py_RETURN_NONE;
}
