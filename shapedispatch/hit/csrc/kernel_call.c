/* The hit path of a Triton kernel: what must be silent, the launcher of what was chosen, its launch. */

/* -------------------------------------------------------------------------------------------------- a kernel's path */

enum { MOST_WATCHES = 16 };

typedef struct {
    FastPath fast_path;
    KeySchema *schema;               /* NULL until the key is known: then nothing is judged */
    int watch_count;
    uint64_t no_hooks_since;                /* the count of changes when all was calm, where all of it tells */
    Watch watches[MOST_WATCHES];
    Watch globals_at;                   /* the kernel's attribute that says which globals it was compiled with */
    PyObject *globals;                  /* what that was when all was calm */
    PyObject *refused;                  /* refused(name, grid, values, error, text): raises for a failed launch */
    PyTypeObject *run_type, *grid_bound;
    PyTypeObject *constant;             /* of globals: `tl.constexpr` */
    Py_ssize_t launcher_at;                 /* where such a run keeps its launcher */
} KernelFastPath;

/* One object under both names; a NaN is no value, and what other types say of themselves is for Python to ask. */
static int is_same_value(PyObject *a, PyObject *b)
{
    if (a == NULL || a != b)
        return 0;
    return PyLong_CheckExact(a) || PyUnicode_CheckExact(a) || PyBool_Check(a) || a == Py_None
        || (PyFloat_CheckExact(a) && PyFloat_AS_DOUBLE(a) == PyFloat_AS_DOUBLE(a));
}

/* Whether two constants of Triton's hold one value; each is a Python object with a `value`. */
static int same_constant(PyObject *a, PyObject *b)
{
    Py_INCREF(a);                       /* to read a value may run code that lets them go */
    Py_INCREF(b);
    PyObject *of_a = PyObject_GetAttr(a, torch.value), *of_b = PyObject_GetAttr(b, torch.value);
    int same = is_same_value(of_a, of_b);
    Py_XDECREF(of_a);
    Py_XDECREF(of_b);
    Py_DECREF(a);
    Py_DECREF(b);
    return same;
}

/* Triton keeps a copy of each global. What may be equal all the same is Python's to judge. */
static int global_unchanged(const KernelFastPath *fast_path, PyObject *key, PyObject *known)
{
    if (!PyTuple_Check(key) || !PyTuple_Check(known) || PyTuple_GET_SIZE(key) < 1 || PyTuple_GET_SIZE(known) != 2
        || !PyDict_CheckExact(PyTuple_GET_ITEM(known, 1)))
        return 0;
    PyObject *then = PyTuple_GET_ITEM(known, 0);
    PyObject *now = PyDict_GetItemWithError(PyTuple_GET_ITEM(known, 1), PyTuple_GET_ITEM(key, 0));
    return now != NULL && Py_TYPE(now) == fast_path->constant && Py_TYPE(then) == fast_path->constant && same_constant(now, then);
}

/* Each global is what it was: {(name, ...): (value, where it stands)}. */
static int globals_unchanged(const KernelFastPath *fast_path, PyObject *globals)
{
    Py_ssize_t place = 0, count;
    PyObject *key, *known;
    if (globals == NULL || !PyDict_CheckExact(globals))
        return 0;
    int stand = 1;
    Py_INCREF(globals);
    count = PyDict_GET_SIZE(globals);
    while (stand && PyDict_Next(globals, &place, &key, &known)) {
        Py_INCREF(key);
        Py_INCREF(known);
        stand = global_unchanged(fast_path, key, known) && PyDict_GET_SIZE(globals) == count;
        Py_DECREF(key);
        Py_DECREF(known);
    }
    Py_DECREF(globals);
    return stand;
}

enum { NEVER = 0 };     /* no count of changes */

/* As it was when all was calm: no dict has told of a change, and what tells of none is looked at. */
static int hooks_unchanged(const KernelFastPath *fast_path)
{
    if (fast_path->no_hooks_since != changes.count)
        return 0;
    for (int i = 0; i < fast_path->watch_count; i++)
        if (!still_shows_no_hooks(&fast_path->watches[i]))
            return 0;
    return class_unchanged(&fast_path->globals_at) && globals_unchanged(fast_path, fast_path->globals);
}

static int check_hooks(KernelFastPath *fast_path)
{
    uint64_t before = changes.count;    /* looking may run code that changes what was looked at */
    int watched_dict = is_watched(&fast_path->globals_at);
    fast_path->no_hooks_since = NEVER;
    for (int i = 0; i < fast_path->watch_count; i++) {
        int another = i == 0 || fast_path->watches[i].object != fast_path->watches[i - 1].object;
        if ((another && !has_its_dict(&fast_path->watches[i])) || !shows_no_hooks(&fast_path->watches[i]))
            return 0;
        watched_dict = watched_dict && is_watched(&fast_path->watches[i]);
    }
    PyObject *globals = watched(&fast_path->globals_at);
    Py_XSETREF(fast_path->globals, globals);
    if (globals == NULL || !globals_unchanged(fast_path, globals))
        return 0;
    if (watched_dict)
        fast_path->no_hooks_since = before;
    return 1;
}

/* Whether a launch needs nothing but being launched now; what it may need is launch.why_not_now's to say. */
static int no_hooks_now(KernelFastPath *fast_path)
{
    int no_hooks = hooks_unchanged(fast_path) || check_hooks(fast_path);
    if (!no_hooks)
        PyErr_Clear();
    return no_hooks;
}

/* The call as a tuple and a dict, for the table, which nodes by them. */
static int sign_for_kernel(const FastPath *self, CallSignature *sig, PyObject *args, PyObject *kwargs)
{
    const KeySchema *schema = ((const KernelFastPath *)self)->schema;
    PyObject *arguments[2 * MOST_KEY_PARAMETERS], *name, *value, *names = NULL;
    if (schema == NULL || !PyTuple_CheckExact(args) || !PyDict_CheckExact(kwargs))
        return 0;
    Py_ssize_t by_position = PyTuple_GET_SIZE(args), by_name = PyDict_GET_SIZE(kwargs), place = 0;
    if (by_position + by_name > 2 * MOST_KEY_PARAMETERS)
        return 0;
    if (by_name > 0 && (names = PyTuple_New(by_name)) == NULL) {
        PyErr_Clear();
        return 0;
    }
    for (Py_ssize_t i = 0; i < by_position; i++)
        arguments[i] = PyTuple_GET_ITEM(args, i);
    for (Py_ssize_t i = 0; PyDict_Next(kwargs, &place, &name, &value); i++) {
        PyTuple_SET_ITEM(names, i, Py_NewRef(name));
        arguments[by_position + i] = value;
    }
    Call call;
    call.arguments = arguments;
    call.by_position = by_position;
    call.names = names;
    call.sig = sig;
    int supported = sign_kernel_call(&call, schema);
    Py_XDECREF(names);
    return supported;
}

/* ------------------------------------------------------------------------------------------------------- the launch */

/* The launcher of the slot's newest entry that can run, borrowed from its run, which is held; NULL for Python to say. */
static const CudaLauncher *launcher_in(const KernelFastPath *fast_path, PyObject *slot, PyObject **held)
{
    PyObject *entries = field(slot, fast_path->fast_path.entries_at);
    if (entries == NULL || !PyTuple_CheckExact(entries))
        return NULL;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(entries); i++) {
        PyObject *entry = PyTuple_GET_ITEM(entries, i);
        if (Py_TYPE(entry) != fast_path->fast_path.entry_type)
            return NULL;
        PyObject *run = field(entry, fast_path->fast_path.run_at);
        if (run == NULL || run == Py_None)
            continue;                   /* its build was let go */
        if (field(entry, fast_path->fast_path.check_at) != Py_None || Py_TYPE(run) != fast_path->run_type)
            return NULL;
        PyObject *launcher = field(run, fast_path->launcher_at);
        if (launcher == NULL || Py_TYPE(launcher) != &CudaLauncherType)
            return NULL;
        *held = Py_NewRef(run);
        return (CudaLauncher *)launcher;
    }
    return NULL;
}

static int size_of(PyObject *given, unsigned *size)
{
    PyObject *number = PyNumber_Index(given);       /* numpy's integers, say */
    long long found = number == NULL ? -1 : PyLong_AsLongLong(number);
    Py_XDECREF(number);
    *size = (unsigned)found;
    return found >= 0 && found <= INT32_MAX;
}

/* The first three of what a grid gives, in a sequence of any type; what cannot be read is Python's to refuse. */
static int sizes_of(PyObject *grid, unsigned sizes[3])
{
    PyObject *items = PyTuple_Check(grid) || PyList_Check(grid) ? PySequence_Tuple(grid) : NULL;
    Py_ssize_t count = items == NULL ? 0 : PyTuple_GET_SIZE(items);
    int read = count > 0;
    for (Py_ssize_t i = 0; read && i < 3; i++)
        if (i < count)
            read = size_of(PyTuple_GET_ITEM(items, i), &sizes[i]);
        else
            sizes[i] = 1;
    Py_XDECREF(items);
    if (!read)
        PyErr_Clear();
    return read;
}

/* The arguments by name, with what configs and heuristics fill in, as a grid is shown them. */
static PyObject *meta_of(const KeySchema *schema, const CudaLauncher *launcher, const Call *call, PyObject *absent)
{
    PyObject *meta = PyDict_New();
    for (Py_ssize_t i = 0; meta != NULL && i < key_parameter_count(schema); i++) {
        PyObject *value = call->values[i] == NULL ? absent : call->values[i];
        if (PyDict_SetItem(meta, schema->key_parameters[i].name, value) < 0)
            Py_CLEAR(meta);
    }
    if (meta != NULL && launcher->filled != NULL && PyDict_Update(meta, launcher->filled) < 0)
        Py_CLEAR(meta);
    return meta;
}

/* What a grid's function answers. NULL with an error set where it raises, as it would in Python. */
static PyObject *grid_by(PyObject *function, const KeySchema *schema, const CudaLauncher *launcher, const Call *call)
{
    PyObject *meta = meta_of(schema, launcher, call, Py_None);
    PyObject *grid = meta == NULL ? NULL : PyObject_CallOneArg(function, meta);
    Py_XDECREF(meta);
    return grid;
}

/* 1 with the sizes; 0 where Python is to say; -1 where a grid's function raised. */
static int size_grid(PyObject *grid, const KeySchema *schema, const CudaLauncher *launcher, const Call *call, unsigned sizes[3])
{
    if (grid == Py_None) {
        memcpy(sizes, launcher->grid, sizeof launcher->grid);
        return sizes[0] != NO_GRID;
    }
    if (!PyCallable_Check(grid))
        return sizes_of(grid, sizes);
    PyObject *answer = grid_by(grid, schema, launcher, call);
    if (answer == NULL)
        return -1;
    int sized = sizes_of(answer, sizes);
    Py_DECREF(answer);
    return sized;
}

/* The value that a config or a heuristic gives. */
static PyObject *filled_value(const CudaLauncher *launcher, const KeyParameter *key_parameter)
{
    return launcher->filled == NULL ? NULL : PyDict_GetItemWithError(launcher->filled, key_parameter->name);
}

/* Whether the parameter can hold an integer that was signed: by annotation it may be narrower, or unsigned. */
static int holds(const Parameter *parameter, uint64_t bits)
{
    if (parameter->kind == UNSIGNED_INT)
        return (int64_t)bits >= 0 && fits(bits, parameter->size, 0);
    return parameter->kind != SIGNED_INT || fits(bits, parameter->size, 1);
}

static int fill_from(const CudaLauncher *launcher, const KeySchema *schema, const Call *call, char *buffer, void **places)
{
    for (Py_ssize_t i = 0; i < launcher->count; i++) {
        const Parameter *parameter = &launcher->parameters[i];
        Py_ssize_t source = parameter->source;
        uint64_t bits = 0;
        if (parameter->kind != ZEROS) {
            const KeyParameter *key_parameter = &schema->key_parameters[source];
            PyObject *value = key_parameter->kind == META ? filled_value(launcher, key_parameter) : call->values[source];
            if (key_parameter->kind != META && call->known[source] && parameter->kind != REAL)
                bits = call->bits[source];
            else if (value == NULL || !bits_of(value, parameter, &bits))
                return 0;
            if (!holds(parameter, bits))
                return 0;
        }
        places[i] = buffer + parameter->offset;
        if (parameter->size == sizeof bits)
            memcpy(places[i], &bits, sizeof bits);      /* a store; of a size that is only known now it is a call */
        else
            memcpy(places[i], &bits, parameter->size);
    }
    return 1;
}

/* As `Launch.captured` has it: a launch inside a capture is noted, by Python. */
static int may_be_captured(void *stream)
{
    int status = 0;
    return stream != NULL && driver.is_capturing != NULL && (driver.is_capturing(stream, &status) != 0 || status != 0);
}

static PyObject *refuse_launch(const KernelFastPath *fast_path, const KeySchema *schema, const CudaLauncher *launcher,
    const unsigned sizes[3], const Call *call, int error)
{
    PyObject *values = PyTuple_New(key_parameter_count(schema));
    for (Py_ssize_t i = 0; values != NULL && i < PyTuple_GET_SIZE(values); i++)
        PyTuple_SET_ITEM(values, i, Py_NewRef(call->values[i] == NULL ? Py_None : call->values[i]));
    if (values == NULL)
        return NULL;
    return PyObject_CallFunction(fast_path->refused, "O(III)Nis", launcher->name, sizes[0], sizes[1], sizes[2], values, error,
        driver_says(error));
}

/* A launch as it will be but for its grid. */
typedef struct {
    uint64_t buffer[MOST_BYTES / sizeof(uint64_t)];
    void *places[MOST_PARAMETERS], *stream;
} Order;

/* Whether C may launch it: on this device, with these arguments, outside of a capture. */
static int may_launch(const KeySchema *schema, const CudaLauncher *launcher, const Call *call, Order *order)
{
    order->stream = NULL;
    if (launcher->values > key_parameter_count(schema) || launcher->device != call->here || !is_current(launcher))
        return 0;                       /* another device is, or this thread has not used CUDA yet */
    if (fill_from(launcher, schema, call, (char *)order->buffer, order->places) && stream_of(launcher, &order->stream))
        return !may_be_captured(order->stream);
    PyErr_Clear();                      /* what does not fit is refused by Triton, in its own words */
    return 0;
}

/* A grid's function may have had the entry let go. */
static int is_launcher_in(const KernelFastPath *fast_path, PyObject *slot, const CudaLauncher *launcher)
{
    PyObject *run = NULL;
    int found = launcher_in(fast_path, slot, &run) == launcher;
    Py_XDECREF(run);
    return found;
}

/* It may also have set a hook: then Python launches, over what the function has come to. */
static int no_hooks_still(KernelFastPath *fast_path, const unsigned sizes[3], Call *call)
{
    if (no_hooks_now(fast_path))
        return 1;
    call->sized = Py_BuildValue("(III)", sizes[0], sizes[1], sizes[2]);
    return 0;
}

/* What the launch returns; NULL with an error set, or without one where Python is to say. */
static PyObject *launch_call(KernelFastPath *fast_path, const KeySchema *schema, const CudaLauncher *launcher, PyObject *slot,
    PyObject *grid, Call *call)
{
    Order order;
    unsigned sizes[3];
    /* All that may leave the launch to Python comes before the grid's function, which is called once a launch. */
    if (!may_launch(schema, launcher, call, &order) || size_grid(grid, schema, launcher, call, sizes) != 1)
        return NULL;
    if (PyCallable_Check(grid) && (!is_launcher_in(fast_path, slot, launcher) || !no_hooks_still(fast_path, sizes, call)))
        return NULL;
    if (!number_hit(&fast_path->fast_path, slot))
        return NULL;
    int error = sizes[0] != 0 && sizes[1] != 0 && sizes[2] != 0
        ? launch_at(launcher, sizes, order.stream, order.places) : 0;
    if (error != 0)
        return refuse_launch(fast_path, schema, launcher, sizes, call, error);
    return Py_NewRef(launcher->answer);
}

static PyObject *hit(KernelFastPath *fast_path, const KeySchema *schema, const CacheNode *node, PyObject *grid, Call *call)
{
    PyObject *run = NULL, *slot = node == NULL ? NULL : node->slot;
    if (slot == NULL)
        return NULL;
    Py_INCREF(slot);
    const CudaLauncher *launcher = launcher_in(fast_path, slot, &run);
    if (launcher == NULL) {
        Py_DECREF(slot);
        return NULL;
    }
    Py_INCREF(launcher);                    /* a grid's function may have the entry let go */
    PyObject *answer = launch_call(fast_path, schema, launcher, slot, grid, call);
    Py_DECREF(launcher);
    Py_DECREF(run);
    Py_DECREF(slot);
    return answer;
}
