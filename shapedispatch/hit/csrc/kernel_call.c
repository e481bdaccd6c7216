/* The hit path of a Triton kernel, as hit/call.py has it: off, no modes, sign, look up, guards, run. */

typedef struct {
    FastPath base;
    Hooks hooks;
    KeySchema *schema;                  /* NULL until the key is known: then no call is judged */
    PyObject *refused;                  /* refused(name, grid, values, error, text): raises for a failed launch */
    PyObject *run_type, *grid_bound;
    Py_ssize_t launcher_at;             /* where a run of that type keeps its launcher */
} KernelFastPath;

/* A call on its way to its launch. What the steps have found, before `call`, is held, and NULL until then. */
typedef struct {
    KeySchema *schema;
    CacheNode *node;
    PyObject *slot;
    CudaLauncher *launcher;
    LaunchTurns *turns;                 /* whose turn that launcher has; NULL where it was chosen */
    PyObject *sized;                    /* what a grid's function came to, where Python is to launch all the same */
    Call call;
    CallSignature sig;
    uint64_t buffer[MOST_BYTES / sizeof(uint64_t)];
    void *places[MOST_PARAMETERS], *stream;
} Launch;

/* ------------------------------------------------------------------------------------------------ 3 sign, 4 look up */

static int sign_launch(const KernelFastPath *path, Launch *launch)
{
    if (path->schema == NULL)
        return 0;
    launch->schema = (KeySchema *)Py_NewRef(path->schema);
    if (!sign_kernel_call(&launch->call, launch->schema))
        return 0;
    if (path->schema == launch->schema)
        return 1;
    drop_objects(&launch->sig);         /* what was asked has changed what is signed */
    return 0;
}

static int find_slot(KernelFastPath *path, Launch *launch)
{
    launch->node = node_of(&path->base.cache, &launch->sig);
    launch->slot = launch->node == NULL ? NULL : Py_XNewRef(launch->node->slot);
    return launch->slot != NULL;
}

/* --------------------------------------------------------------------------------------------------------- 5 guards */

/* What the slot's newest entry that can run runs, borrowed; NULL for Python to say. */
static PyObject *newest_run(const KernelFastPath *path, PyObject *slot)
{
    PyObject *entries = field(slot, path->base.entries_at), *run = NULL;
    if (entries == NULL || !PyTuple_CheckExact(entries))
        return NULL;
    for (Py_ssize_t i = 0; run == NULL && i < PyTuple_GET_SIZE(entries); i++) {
        PyObject *entry = PyTuple_GET_ITEM(entries, i);
        if ((PyObject *)Py_TYPE(entry) != path->base.entry_type)
            return NULL;
        run = run_of(&path->base, entry);
        if (run != NULL && field(entry, path->base.check_at) != Py_None)
            return NULL;
    }
    return run;
}

/* Its launcher, or that whose turn it is, borrowed; NULL for Python to say. Where nothing may be timed there are none. */
static CudaLauncher *launcher_of(const KernelFastPath *path, PyObject *run)
{
    if (run != NULL && Py_IS_TYPE(run, &LaunchTurnsType)) {
        note_next((LaunchTurns *)run);
        return path->base.frozen ? NULL : launcher_of_turn((LaunchTurns *)run);
    }
    if (run == NULL || (PyObject *)Py_TYPE(run) != path->run_type)
        return NULL;
    PyObject *launcher = field(run, path->launcher_at);
    return launcher != NULL && Py_IS_TYPE(launcher, &CudaLauncherType) ? (CudaLauncher *)launcher : NULL;
}

static int find_launcher(const KernelFastPath *path, Launch *launch)
{
    PyObject *run = newest_run(path, launch->slot);
    launch->launcher = (CudaLauncher *)Py_XNewRef(launcher_of(path, run));
    if (launch->launcher != NULL && Py_IS_TYPE(run, &LaunchTurnsType))
        launch->turns = (LaunchTurns *)Py_NewRef(run);
    return launch->launcher != NULL;
}

/* Whether the parameter can hold an integer that was signed: by annotation it may be narrower, or unsigned. */
static int holds(const Parameter *parameter, uint64_t bits)
{
    if (parameter->kind == UNSIGNED_INT)
        return (int64_t)bits >= 0 && fits(bits, parameter->size, 0);
    return parameter->kind != SIGNED_INT || fits(bits, parameter->size, 1);
}

/* What is passed for a parameter: as it was signed, or of the value that the call, a config or a heuristic gives. */
static int argument_bits(const Launch *launch, const Parameter *parameter, uint64_t *bits)
{
    const KeyParameter *key_parameter = &launch->schema->key_parameters[parameter->source];
    const Call *call = &launch->call;
    PyObject *value = call->values[parameter->source], *meta = launch->launcher->meta;
    if (key_parameter->kind == META)
        value = meta == NULL ? NULL : PyDict_GetItemWithError(meta, key_parameter->name);
    else if (call->known[parameter->source] && parameter->kind != REAL) {
        *bits = call->bits[parameter->source];
        return holds(parameter, *bits);
    }
    return value != NULL && bits_of(value, parameter, bits) && holds(parameter, *bits);
}

static int fill_arguments(Launch *launch)
{
    for (Py_ssize_t i = 0; i < launch->launcher->count; i++) {
        const Parameter *parameter = &launch->launcher->parameters[i];
        uint64_t bits = 0;
        if (parameter->kind != ZEROS && !argument_bits(launch, parameter, &bits))
            return 0;
        launch->places[i] = pass_bits((char *)launch->buffer, parameter, bits);
    }
    return 1;
}

/* As `TritonLauncher.captured` has it: a launch inside a capture is noted, by Python. */
static int may_be_captured(void *stream)
{
    int status = 0;
    return stream != NULL && driver.is_capturing != NULL && (driver.is_capturing(stream, &status) != 0 || status != 0);
}

/* Whether C may launch it: on this device, with these arguments, outside of a capture. */
static int can_launch(Launch *launch)
{
    const CudaLauncher *launcher = launch->launcher;
    launch->stream = NULL;
    if (launcher->values > key_parameter_count(launch->schema) || launcher->device != launch->call.here
        || !is_current(launcher))
        return 0;                       /* another device is, or this thread has not used CUDA yet */
    if (fill_arguments(launch) && stream_of(launcher, &launch->stream))
        return !may_be_captured(launch->stream);
    PyErr_Clear();                      /* what does not fit is refused by Triton, in its own words */
    return 0;
}

/* -------------------------------------------------------------------------------------------------- 6 run: its grid */

/* The first three of what a grid gives, in a sequence of any type; what cannot be read is Python's to refuse. */
static Result sizes_of(PyObject *grid, unsigned sizes[3])
{
    PyObject *items = PyTuple_Check(grid) || PyList_Check(grid) ? PySequence_Tuple(grid) : NULL;
    int read = items != NULL && read_sizes(items, sizes);
    Py_XDECREF(items);
    if (!read)
        PyErr_Clear();
    return read ? HIT : MISS;
}

/* What a grid's function answers: it is shown the arguments by name, and what configs and heuristics give. */
static PyObject *grid_by(PyObject *function, const Launch *launch)
{
    PyObject *meta = PyDict_New();
    for (Py_ssize_t i = 0; meta != NULL && i < key_parameter_count(launch->schema); i++) {
        PyObject *value = launch->call.values[i] == NULL ? Py_None : launch->call.values[i];
        if (PyDict_SetItem(meta, launch->schema->key_parameters[i].name, value) < 0)
            Py_CLEAR(meta);
    }
    if (meta != NULL && launch->launcher->meta != NULL && PyDict_Update(meta, launch->launcher->meta) < 0)
        Py_CLEAR(meta);
    PyObject *grid = meta == NULL ? NULL : PyObject_CallOneArg(function, meta);
    Py_XDECREF(meta);
    return grid;
}

/* Its function may have had the entry let go, or have set a hook: then Python launches, over the sizes it gave. */
static Result judge_again(KernelFastPath *path, const unsigned sizes[3], Launch *launch)
{
    int hook_found = !no_hooks(&path->hooks);
    if (launcher_of(path, newest_run(path, launch->slot)) != launch->launcher)
        return MISS;
    if (!hook_found)
        return HIT;
    launch->sized = Py_BuildValue("(III)", sizes[0], sizes[1], sizes[2]);
    return launch->sized == NULL ? RAISED : MISS;
}

static Result size_grid(KernelFastPath *path, PyObject *grid, Launch *launch, unsigned sizes[3])
{
    if (grid == Py_None) {
        memcpy(sizes, launch->launcher->grid, sizeof launch->launcher->grid);
        return sizes[0] != NO_GRID ? HIT : MISS;
    }
    if (!PyCallable_Check(grid))
        return sizes_of(grid, sizes);
    PyObject *answer = grid_by(grid, launch);
    if (answer == NULL)
        return RAISED;                  /* as it does in Python */
    Result result = sizes_of(answer, sizes);
    Py_DECREF(answer);
    return result == HIT ? judge_again(path, sizes, launch) : result;
}

static PyObject *refuse_launch(const KernelFastPath *path, const unsigned sizes[3], const Launch *launch, int error)
{
    PyObject *values = PyTuple_New(key_parameter_count(launch->schema));
    for (Py_ssize_t i = 0; values != NULL && i < PyTuple_GET_SIZE(values); i++)
        PyTuple_SET_ITEM(values, i, Py_NewRef(launch->call.values[i] == NULL ? Py_None : launch->call.values[i]));
    /* Without values the call is not made, and their error stays. */
    return PyObject_CallFunction(path->refused, "O(III)Nis", launch->launcher->name, sizes[0], sizes[1], sizes[2],
        values, error, driver_says(error));
}

/* The driver's answer. What ran since the turn was found may have taken it: then this launch is no sample. */
static int launch_turn(const Launch *launch, const unsigned sizes[3])
{
    LaunchSample *sample = launcher_of_turn(launch->turns) == launch->launcher
        ? take_turn(launch->turns, launch->stream) : NULL;
    int error = launch_at(launch->launcher, sizes, launch->stream, (void **)launch->places);
    if (sample != NULL)
        end_sample(sample, launch->stream, error, 0);
    return error;
}

static int launch_over(const Launch *launch, const unsigned sizes[3])
{
    if (sizes[0] == 0 || sizes[1] == 0 || sizes[2] == 0)
        return 0;
    return launch->turns != NULL ? launch_turn(launch, sizes)
        : launch_at(launch->launcher, sizes, launch->stream, (void **)launch->places);
}

static Result run_launch(KernelFastPath *path, PyObject *grid, Launch *launch, PyObject **answer)
{
    unsigned sizes[3];
    Result sized = size_grid(path, grid, launch, sizes);
    if (sized != HIT)
        return sized;
    if (!number_hit(&path->base, launch->slot))
        return RAISED;
    int error = launch_over(launch, sizes);
    *answer = error == 0 ? Py_NewRef(launch->launcher->answer) : refuse_launch(path, sizes, launch, error);
    return *answer == NULL ? RAISED : HIT;
}

/* --------------------------------------------------------------------------------------------------------- the call */

/* The law. A node is found also where there is no hit: the table may learn of its call. */
static Result kernel_hit(KernelFastPath *path, PyObject *grid, Launch *launch, PyObject **answer)
{
    if (path->base.off                                              /* 1 off */
        || !no_hooks(&path->hooks)                                  /* 2 no modes */
        || !sign_launch(path, launch)                               /* 3 sign */
        || !find_slot(path, launch)                                 /* 4 look up */
        || (path->base.left > 0 && --path->base.left == 0)
        || !find_launcher(path, launch) || !can_launch(launch))     /* 5 guards */
        return MISS;
    /* All that may leave the launch to Python comes before the grid's function, which is called once a launch. */
    return run_launch(path, grid, launch, answer);                  /* 6 run */
}

/* In Python: kernel_object.<method>(node, grid, *arguments). */
static PyObject *kernel_miss(PyObject *kernel_object, PyObject *method, PyObject *grid, const Launch *launch)
{
    const Call *call = &launch->call;
    CacheNode *node = launch->node;
    Py_ssize_t count = call->by_position + name_count(call);
    PyObject **stack = PyMem_Malloc((size_t)(count + 3) * sizeof *stack);
    if (stack == NULL)
        return PyErr_NoMemory();
    stack[0] = kernel_object;
    stack[1] = node != NULL && node->slot == NULL ? (PyObject *)node : Py_None;
    stack[2] = launch->sized != NULL ? launch->sized : grid;
    memcpy(stack + 3, call->arguments, (size_t)count * sizeof *stack);
    PyObject *answer = PyObject_VectorcallMethod(method, stack, (size_t)call->by_position + 3, call->names);
    PyMem_Free(stack);
    return answer;
}

/* `path` may be NULL: then every call takes the Python path. */
static PyObject *call_kernel(PyObject *kernel_object, KernelFastPath *path, PyObject *method, PyObject *grid,
    PyObject *const *arguments, size_t flags, PyObject *names)
{
    Launch launch;
    PyObject *answer = NULL;
    memset(&launch, 0, offsetof(Launch, call));     /* the rest, which is large, is set before it is read */
    launch.call.arguments = arguments;
    launch.call.by_position = PyVectorcall_NARGS(flags);
    launch.call.names = names;
    launch.call.sig = &launch.sig;
    Py_XINCREF(path);                   /* what is asked may run code that gives the kernel another */
    Result result = path == NULL ? MISS : kernel_hit(path, grid, &launch, &answer);
    Py_XDECREF(launch.schema);
    Py_XDECREF(launch.slot);
    Py_XDECREF(launch.launcher);
    Py_XDECREF(launch.turns);
    Py_XDECREF(path);
    if (result == MISS)
        answer = kernel_miss(kernel_object, method, grid, &launch);
    Py_XDECREF(launch.node);
    Py_XDECREF(launch.sized);
    return answer;
}

/* ------------------------------------------------------------------------------- the same call, as the table has it */

/* A tuple and a dict laid out as a call's arguments. */
static int sign_tuple_and_dict(const FastPath *self, CallSignature *sig, PyObject *args, PyObject *kwargs)
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
