/*
 * Questions to torch about the state around a call, each of them a Python function's, and how they are asked.
 *
 * What such a function does is done by one of torch's libraries, which answers in a few nanoseconds what Python's function
 * takes twenty to a hundred for. It is found by what the linker calls it: that says what it takes, and nothing of what it
 * returns. So hit/symbols.py tries each beside Python's function, on releases of torch that are known, before it is asked
 * at a hit.
 */

/* ------------------------------------------------------------------------------------- functions of torch's libraries */

typedef void (*LinkedFunction)(void);

static LinkedFunction torch_symbol(const char *library, const char *name)
{
    LinkedFunction function = NULL;
#ifdef __linux__
    void *opened = dlopen(library, RTLD_LAZY | RTLD_NOLOAD), *found = opened == NULL ? NULL : dlsym(opened, name);
    memcpy(&function, &found, sizeof function);
#else
    (void)library;
    (void)name;
#endif
    return function;
}

typedef struct Symbol {
    const char *name, *library, *linked;
    uint64_t (*read)(const struct Symbol *symbol);
    const char *backend;                /* of what a precision is asked for */
    LinkedFunction function;
    uint64_t argument;                  /* as hit/symbols.py gives it */
    int codes[2];                       /* of the backend and of matrix products */
} Symbol;

static uint64_t read_flag(const Symbol *symbol)
{
    return ((_Bool (*)(void))symbol->function)();
}

static uint64_t read_count(const Symbol *symbol)
{
    return (uint64_t)((int64_t (*)(void))symbol->function)();
}

static uint64_t read_number(const Symbol *symbol)
{
    return (uint64_t)((int (*)(void))symbol->function)();
}

static uint64_t read_code(const Symbol *symbol)
{
    return (uint64_t)((int8_t (*)(void))symbol->function)();
}

/* Whether not all of a dispatch-key set is left out. */
static uint64_t read_set(const Symbol *symbol)
{
    return !((_Bool (*)(uint64_t))symbol->function)(symbol->argument);
}

/* Of a reference to a smart pointer: it begins with the pointer. */
static uint64_t read_is_set(const Symbol *symbol)
{
    return *((void *const *(*)(void))symbol->function)() != NULL;
}

/* Of a reference to a vector: it begins with where its items begin and end. */
static uint64_t read_is_filled(const Symbol *symbol)
{
    void *const *ends = ((void *const *(*)(void))symbol->function)();
    return ends[0] != ends[1];
}

/* Of a reference to what begins with a stack: a deque, in which words 2 and 6 say where its items begin and end. */
static uint64_t read_is_stacked(const Symbol *symbol)
{
    void *const *deque = ((void *const *(*)(void))symbol->function)();
    return deque[2] != deque[6];
}

/* Of a variable. */
static uint64_t read_switch(const Symbol *symbol)
{
    const _Bool *variable;
    memcpy(&variable, &symbol->function, sizeof variable);
    return *variable;
}

/* --------------------------------------------------------------------------------- which dispatch keys a thread adds */

/*
 * A variable that each thread has its own of: those added to a tensor's and those left out, a word each. The compiler
 * reads such by the number of the library and a place in it, and so does this.
 */
#define LOCAL_KEYS "_ZN3c104impl26raw_local_dispatch_key_setE"

static struct {
    unsigned long library, place;
} local_keys;

#if defined(__GLIBC__) && (defined(__x86_64__) || defined(__aarch64__))
extern void *__tls_get_addr(void *place);

static int find_local_keys(const Symbol *symbol)
{
    void *library = dlopen(symbol->library, RTLD_LAZY | RTLD_NOLOAD);
    char *here = library == NULL ? NULL : dlsym(library, symbol->linked), *block = NULL;
    if (here == NULL || dlinfo(library, RTLD_DI_TLS_MODID, &local_keys.library) != 0
        || dlinfo(library, RTLD_DI_TLS_DATA, &block) != 0 || block == NULL)
        return 0;
    local_keys.place = (unsigned long)(here - block);
    return 1;
}

static uint64_t local_word(int which)
{
    return ((const uint64_t *)__tls_get_addr(&local_keys))[which];
}
#else
static int find_local_keys(const Symbol *Py_UNUSED(symbol))
{
    return 0;
}

static uint64_t local_word(int Py_UNUSED(which))
{
    return 0;
}
#endif

/* What stands there differs from the keys in those that are added, or left out, from the beginning: the argument. */
static uint64_t read_added(const Symbol *symbol)
{
    return local_word(0) ^ symbol->argument;
}

static uint64_t read_left_out(const Symbol *symbol)
{
    return local_word(1) ^ symbol->argument;
}

/* -------------------------------------------------------------------------------------------------- settings of torch */

#define C10 "libc10.so"
#define ATEN "libtorch_cpu.so"
#define BACKEND_OF "_ZN2at11str2backendERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"
#define OP_OF "_ZN2at6str2opERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"

/* A short text as libstdc++ has it, which the libraries are built with. */
typedef struct {
    const char *letters;
    size_t length;
    char inside[16];
} Text;

static void *settings_of_torch;         /* one object, for the process */

static uint64_t read_setting(const Symbol *symbol)
{
    return ((_Bool (*)(void *))symbol->function)(settings_of_torch);
}

static uint64_t read_precision(const Symbol *symbol)
{
    return (uint64_t)((int (*)(void *, int, int))symbol->function)(settings_of_torch, symbol->codes[0], symbol->codes[1]);
}

static int code_of(const char *name, const char *linked, int *code)
{
    Text text = {name, strlen(name), ""};
    int (*ask)(const Text *) = (int (*)(const Text *))torch_symbol(ATEN, linked);
    *code = ask == NULL ? 0 : ask(&text);
    return ask != NULL;
}

/* Torch's own codes for what Python names. It knows these names: Python was answered before. */
static int find_settings(Symbol *symbol)
{
    void *(*settings)(void) = (void *(*)(void))torch_symbol(ATEN, "_ZN2at13globalContextEv");
    settings_of_torch = settings == NULL ? NULL : settings();
    return settings_of_torch != NULL && (symbol->backend == NULL
        || (code_of(symbol->backend, BACKEND_OF, &symbol->codes[0]) && code_of("matmul", OP_OF, &symbol->codes[1])));
}

static int is_there(Symbol *symbol)
{
    int local = symbol->read == read_added || symbol->read == read_left_out;
    return local ? find_local_keys(symbol) : find_settings(symbol);
}

/* ------------------------------------------------------------------------------------------------------ all of them */

#define PRECISION "_ZNK2at7Context16float32PrecisionENS_14Float32BackendENS_9Float32OpE"
#define SYMBOL(name, library, linked, read, backend) {name, library, linked, read, backend, NULL, 0, {0, 0}}

/* Each in a line of the cache of its own, since between two hits all of them leave it. */
static _Alignas(64) Symbol symbols[] = {
    SYMBOL("function modes", ATEN, "_ZN2at4impl22PythonTorchFunctionTLS9stack_lenEv", read_count, NULL),
    SYMBOL("dispatch modes", C10, "_ZN3c104impl20TorchDispatchModeTLS9stack_lenEv", read_count, NULL),
    SYMBOL("transforms", ATEN, "_ZN2at9functorch20getDynamicLayerStackEv", read_is_filled, NULL),
    SYMBOL("tracing", ATEN, "_ZN5torch3jit6tracer15getTracingStateEv", read_is_set, NULL),
    SYMBOL("grad mode", C10, "_ZN3c108GradMode10is_enabledEv", read_flag, NULL),
    SYMBOL("inference mode", C10, "_ZN3c1013InferenceMode10is_enabledEv", read_flag, NULL),
    SYMBOL("autocast", C10, "_ZN3c104impl31tls_is_dispatch_keyset_excludedENS_14DispatchKeySetE", read_set, NULL),
    SYMBOL("default dtype", C10, "_ZN3c1031get_default_dtype_as_scalartypeEv", read_code, NULL),
    SYMBOL("threads", ATEN, "_ZN2at15get_num_threadsEv", read_number, NULL),
    SYMBOL("determinism", ATEN, "_ZNK2at7Context23deterministicAlgorithmsEv", read_setting, NULL),
    SYMBOL("precision of cuda", ATEN, PRECISION, read_precision, "cuda"),
    SYMBOL("precision of mkldnn", ATEN, PRECISION, read_precision, "mkldnn"),
    SYMBOL("function state", ATEN, "_ZN2at4impl22PythonTorchFunctionTLS18get_disabled_stateEv", read_code, NULL),
    SYMBOL("saved-tensor hooks", ATEN, "_ZN2at23SavedTensorDefaultHooks13get_tls_stateEv", read_is_stacked, NULL),
    SYMBOL("anomaly", ATEN, "_ZN5torch8autograd11AnomalyMode8_enabledE", read_switch, NULL),
    SYMBOL("keys added", C10, LOCAL_KEYS, read_added, NULL),
    SYMBOL("keys left out", C10, LOCAL_KEYS, read_left_out, NULL),
};

/* NULL where there is none, with or without an error. */
static const Symbol *symbol_named(PyObject *name, uint64_t argument)
{
    for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++) {
        Symbol *symbol = &symbols[i];
        if (PyUnicode_CompareWithASCIIString(name, symbol->name) != 0)
            continue;
        if (symbol->function == NULL && is_there(symbol))
            symbol->function = torch_symbol(symbol->library, symbol->linked);
        symbol->argument = argument;
        return symbol->function == NULL ? NULL : symbol;
    }
    PyErr_Format(PyExc_ValueError, "there is no symbol %R", name);
    return NULL;
}

PyDoc_STRVAR(read_symbol_doc, "read_symbol(name, argument, /)\n--\n\n"
    "What the function of torch's libraries says now, as an integer; None where it is not there.");

static PyObject *read_symbol(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *name;
    unsigned long long argument;
    if (!PyArg_ParseTuple(args, "UK", &name, &argument))
        return NULL;
    const Symbol *symbol = symbol_named(name, argument);
    if (symbol == NULL)
        return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
    return PyLong_FromUnsignedLongLong(symbol->read(symbol));
}

/* --------------------------------------------------------------------------------------------------------- questions */

/* A question to torch. Where it is a C function without arguments it is called directly, past Python's call. */
typedef struct {
    PyObject *question;                 /* a tuple: the function, then its arguments */
    PyCFunction direct;
    PyObject *self;
    const Symbol *symbol;               /* asked in its place, where it was found to say the same */
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

static int is_tuple_of_some(PyObject *value, const char *name)
{
    return (PyTuple_CheckExact(value) && PyTuple_GET_SIZE(value) > 0)
        || PyErr_Format(PyExc_TypeError, "%s is no tuple, or an empty one", name) != NULL;
}

static int take_question(PyObject *question, const char *name, void *place)
{
    Probe *probe = place;
    if (!is_tuple_of_some(question, name))
        return 0;
    Py_XSETREF(probe->question, Py_NewRef(question));
    PyObject *function = PyTuple_GET_ITEM(question, 0);
    int direct = PyTuple_GET_SIZE(question) == 1 && PyCFunction_CheckExact(function)
        && PyCFunction_GET_FLAGS(function) == METH_NOARGS;
    probe->direct = direct ? PyCFunction_GET_FUNCTION(function) : NULL;
    probe->self = direct ? PyCFunction_GET_SELF(function) : NULL;
    probe->symbol = NULL;
    return 1;
}

static int take_questions(PyObject *value, const char *name, void *place)
{
    Probes *probes = place;
    if (!is_tuple_of_some(value, name))
        return 0;
    probes->count = 0;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(value) && i < MOST_PROBES; i++, probes->count++)
        if (!take_question(PyTuple_GET_ITEM(value, i), name, &probes->probes[i]))
            return 0;
    return probes->count == PyTuple_GET_SIZE(value)
        || PyErr_Format(PyExc_TypeError, "%s holds more than %d questions", name, MOST_PROBES) != NULL;
}

/* ------------------------------------------------------------------------------------------------ the state of a thread */

/* What no key holds: which dispatch keys this thread adds and leaves out, and whether it calls `__torch_function__`. */
static Probe keys_added, keys_left_out, functions_seen;

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    int count;
    const Probe *probes[2];
    uint64_t words[2];
} ThreadState;

static PyObject *thread_state_vectorcall(PyObject *self, PyObject *const *Py_UNUSED(call), size_t flags, PyObject *names)
{
    const ThreadState *state = (ThreadState *)self;
    if (PyVectorcall_NARGS(flags) != 0 || names != NULL)
        return PyErr_Format(PyExc_TypeError, "takes no arguments");
    for (int i = 0; i < state->count; i++) {
        const Symbol *symbol = state->probes[i]->symbol;
        if (symbol == NULL || symbol->read(symbol) != state->words[i])
            Py_RETURN_FALSE;
    }
    Py_RETURN_TRUE;
}

static PyTypeObject ThreadStateType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "shapedispatch.hit._native.ThreadState",
    .tp_doc = "Called, whether the thread that asks is as it was where this was made.",
    .tp_basicsize = sizeof(ThreadState),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_vectorcall_offset = offsetof(ThreadState, vectorcall),
    .tp_call = PyVectorcall_Call,
};

/* As it is now by what these probes read; None where one of them is for Python to ask. */
static PyObject *thread_state(const Probe *const *probes, int count)
{
    for (int i = 0; i < count; i++)
        if (probes[i]->symbol == NULL)
            Py_RETURN_NONE;
    ThreadState *state = PyObject_New(ThreadState, &ThreadStateType);
    if (state == NULL)
        return NULL;
    state->vectorcall = thread_state_vectorcall;
    state->count = count;
    for (int i = 0; i < count; i++) {
        state->probes[i] = probes[i];
        state->words[i] = probes[i]->symbol->read(probes[i]->symbol);
    }
    return (PyObject *)state;
}

PyDoc_STRVAR(dispatcher_state_doc, "dispatcher_state(/)\n--\n\n"
    "A question: whether operators are dispatched as they are now; None where only Python can ask that.");

static PyObject *dispatcher_state(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
{
    return thread_state((const Probe *[]){&keys_added, &keys_left_out}, 2);
}

PyDoc_STRVAR(function_state_doc, "function_state(/)\n--\n\n"
    "A question: whether `__torch_function__` is called as it is now; None where only Python can ask that.");

static PyObject *function_state(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
{
    return thread_state((const Probe *[]){&functions_seen}, 1);
}
