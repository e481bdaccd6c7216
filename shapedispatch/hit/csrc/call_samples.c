/* Calls of a function that are samples: as launches are, with whatever runs a candidate in the launcher's place. */

/*
 * All that a sample costs beside its call is two clocks and, on a device, three calls of the driver. In Python it is
 * more than many a call takes, and what is measured is code that such a detour has left cold.
 */
typedef struct {
    LaunchTurns base;                   /* its `launch` runs a call while another of these turns is on */
    PyObject *raised;                   /* raised(turn, *args, **kwargs): where a candidate has, for what it raised */
    PyObject *path;                     /* the dispatcher's hit path: nothing is timed while it is frozen */
    int device;                         /* whose streams the calls are on; NO_DEVICE: they are over when they return */
    char busy;                          /* whether a turn is on: of another thread, or around this call */
    unsigned since_new;                 /* calls of these keys since one of them was new */
    Py_ssize_t passed, patience;        /* how many calls took none for that, in a row; how many may */
    Py_ssize_t first_ns;                /* what first calls of keys took that were no samples, by the host's clock */
} CallTurns;

/*
 * All that a new key takes leaves the caches cold for some calls, more so the more code a candidate has: plain may well
 * be faster then, and slower as soon as sizes repeat. Turns are for calls that are not beside a new key, if such come.
 */
enum { NO_DEVICE = -1, BESIDE_NEW = 8 };

/* Whether the call may be a sample, with the stream that it is on. */
static int may_be_sampled(const CallTurns *turns, void **stream)
{
    void *context = NULL;
    int capturing = 0;
    if (turns->base.left == 0 || ((FastPath *)turns->path)->frozen)
        return 0;
    if (turns->device == NO_DEVICE)
        return 1;
    if (driver.current_context(&context) != 0 || context != turns->base.context
        || driver.work_stream(CUDA, turns->device, stream) != 0)
        return 0;
    return driver.is_capturing == NULL || (driver.is_capturing(*stream, &capturing) == 0 && capturing == 0);
}

/* `raised(turn, *args, **kwargs)`; meanwhile what the candidate raised is the exception being handled. */
static PyObject *answer_raised(const CallTurns *turns, PyObject *error, PyObject *turn, PyObject *const *arguments,
    size_t flags, PyObject *names)
{
    Py_ssize_t by_position = PyVectorcall_NARGS(flags), count = by_position + (names ? PyTuple_GET_SIZE(names) : 0);
    PyObject *before = PyErr_GetHandledException(), *answer = NULL;
    PyObject **stack = PyMem_Malloc((size_t)(count + 1) * sizeof *stack);
    PyErr_SetHandledException(error);
    if (stack == NULL)
        PyErr_NoMemory();
    else {
        stack[0] = turn;
        memcpy(stack + 1, arguments, (size_t)count * sizeof *stack);
        answer = PyObject_Vectorcall(turns->raised, stack, (size_t)by_position + 1, names);
    }
    PyMem_Free(stack);
    PyErr_SetHandledException(before);
    Py_XDECREF(before);
    return answer;
}

/*
 * The call by the candidate whose turn it is; ``where`` is told of its sample, unless it is NULL. What runs may give
 * others turns, and may let go of all of these.
 */
static PyObject *run_turn(CallTurns *turns, void *stream, PyObject *where, PyObject *const *arguments, size_t flags,
    PyObject *names)
{
    PyObject *turn = Py_NewRef(PyTuple_GET_ITEM(turns->base.turns, turns->base.next));
    PyObject *whose = pass_turn(&turns->base);
    PyObject *told = whose == Py_None || where == NULL ? Py_NewRef(whose) : PyTuple_Pack(2, whose, where);
    if (told == NULL) {
        Py_DECREF(turn);
        return NULL;
    }
    Py_INCREF(turns);
    turns->busy = 1;
    LaunchSample *sample = begin_sample(&turns->base, told, stream);
    Py_DECREF(told);
    PyObject *answer = PyObject_Vectorcall(PyTuple_GET_ITEM(turn, 0), arguments, flags, names);
    PyObject *error = answer == NULL ? take_raised() : NULL;
    if (sample != NULL)
        end_sample(sample, stream, error != NULL, 1);
    turns->busy = 0;
    if (error != NULL && PyObject_TypeCheck(error, (PyTypeObject *)PyExc_Exception))
        answer = answer_raised(turns, error, turn, arguments, flags, names);
    else if (error != NULL)
        PyErr_SetObject((PyObject *)Py_TYPE(error), error);
    Py_XDECREF(error);
    Py_DECREF(turns);
    Py_DECREF(turn);
    return answer;
}

static PyObject *call_turns_vectorcall(PyObject *self, PyObject *const *arguments, size_t flags, PyObject *names)
{
    CallTurns *turns = (CallTurns *)self;
    void *stream = NULL;
    note_next(&turns->base);
    if (turns->busy)
        return PyObject_Vectorcall(turns->base.launch, arguments, flags, names);
    if (may_be_sampled(turns, &stream))
        return run_turn(turns, stream, NULL, arguments, flags, names);
    PyErr_Clear();                      /* of torch, where it gives no stream */
    return PyObject_Vectorcall(turns->base.call, arguments, flags, names);
}

PyDoc_STRVAR(begin_calls_doc, "begin(turns, /)\n--\n\n"
    "Let the next calls be these: a tuple of (what runs it, whose sample or None, how many calls).");

static PyObject *call_turns_begin(PyObject *self, PyObject *given)
{
    LaunchTurns *turns = (LaunchTurns *)self;
    if (!PyTuple_CheckExact(given))
        return PyErr_Format(PyExc_TypeError, "begin takes a tuple");
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(given); i++) {
        PyObject *turn = PyTuple_GET_ITEM(given, i);
        if (!PyTuple_CheckExact(turn) || PyTuple_GET_SIZE(turn) != 3 || !PyCallable_Check(PyTuple_GET_ITEM(turn, 0))
            || !PyLong_CheckExact(PyTuple_GET_ITEM(turn, 2)) || PyLong_AsSsize_t(PyTuple_GET_ITEM(turn, 2)) < 1)
            return PyErr_Format(PyExc_TypeError, "%R is no turn", turn);
    }
    begin_turns(turns, given);
    Py_RETURN_NONE;
}

/* On a device the context that is current is that of the events. */
static int find_context(CallTurns *turns)
{
    if (turns->device == NO_DEVICE)
        return 1;
    if (events.create == NULL || driver.current_context == NULL || driver.work_stream == NULL)
        return PyErr_Format(PyExc_RuntimeError, "there is no driver to time calls with") != NULL;
    if (driver.current_context(&turns->base.context) == 0 && turns->base.context != NULL)
        return 1;
    return PyErr_Format(PyExc_RuntimeError, "no device is current to time calls on") != NULL;
}

static PyObject *call_turns_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"call", "unsampled", "raised", "path", "device", NULL};
    PyObject *call, *unsampled, *raised, *path;
    int device = NO_DEVICE;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOOO!|i", names, &call, &unsampled, &raised, &FastPathType, &path,
        &device))
        return NULL;
    CallTurns *turns = (CallTurns *)type->tp_alloc(type, 0);
    if (turns == NULL || (turns->base.turns = PyTuple_New(0)) == NULL) {
        Py_XDECREF(turns);
        return NULL;
    }
    turns->base.vectorcall = call_turns_vectorcall;
    turns->base.call = Py_NewRef(call);
    turns->base.launch = Py_NewRef(unsampled);
    turns->raised = Py_NewRef(raised);
    turns->path = Py_NewRef(path);
    turns->device = device;
    if (!find_context(turns))
        Py_CLEAR(turns);
    return (PyObject *)turns;
}

static int call_turns_traverse(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(((CallTurns *)self)->raised);
    Py_VISIT(((CallTurns *)self)->path);
    return turns_traverse(self, visit, arg);
}

/* The path stays, which holds no turns of its own: whether it is frozen is read at each call. */
static int call_turns_clear(PyObject *self)
{
    Py_XSETREF(((CallTurns *)self)->raised, Py_NewRef(Py_None));
    return turns_clear(self);
}

static void call_turns_dealloc(PyObject *self)
{
    PyObject_GC_UnTrack(self);
    Py_CLEAR(((CallTurns *)self)->raised);
    Py_CLEAR(((CallTurns *)self)->path);
    turns_dealloc(self);
}

static PyMethodDef call_turns_methods[] = {
    {"begin", call_turns_begin, METH_O, begin_calls_doc},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef call_turns_members[] = {
    {"patience", Py_T_PYSSIZET, offsetof(CallTurns, patience), 0, "how many calls beside a new key take no turn"},
    {"first_ns", Py_T_PYSSIZET, offsetof(CallTurns, first_ns), 0, "what first calls took that were no samples"},
    {NULL, 0, 0, 0, NULL},
};

static PyTypeObject CallTurnsType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "shapedispatch.hit._native.CallTurns",
    .tp_doc = "CallTurns(call, unsampled, raised, path, device=-1)\n--\n\nAs `LaunchTurns`, of a function's calls: `call`"
              " runs one where no turn is left,\n`unsampled` one while another is on, `raised` one whose candidate has"
              " raised. Raises RuntimeError where\nthe driver has no events.",
    .tp_base = &LaunchTurnsType,
    .tp_basicsize = sizeof(CallTurns),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_new = call_turns_new,
    .tp_dealloc = call_turns_dealloc,
    .tp_traverse = call_turns_traverse,
    .tp_clear = call_turns_clear,
    .tp_call = PyVectorcall_Call,
    .tp_vectorcall_offset = offsetof(LaunchTurns, vectorcall),
    .tp_methods = call_turns_methods,
    .tp_members = call_turns_members,
};

/* ------------------------------------------------------------------------------------- of keys that find out together */

/* What leads where the keys of one neighbourhood are: one for all of them, so that another leads from one call on. */
typedef struct {
    PyObject_HEAD
    PyObject *run;
    char open;                          /* whether keys take turns */
} PoolLeader;

static PyObject *pool_leader_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"run", NULL};
    PyObject *run;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O", names, &run))
        return NULL;
    PoolLeader *leader = (PoolLeader *)type->tp_alloc(type, 0);
    if (leader == NULL)
        return NULL;
    leader->run = Py_NewRef(run);
    leader->open = 1;
    return (PyObject *)leader;
}

static int pool_leader_traverse(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(((PoolLeader *)self)->run);
    return 0;
}

/* What is called stays callable: None says so in Python's own words. */
static int pool_leader_clear(PyObject *self)
{
    Py_XSETREF(((PoolLeader *)self)->run, Py_NewRef(Py_None));
    return 0;
}

static void pool_leader_dealloc(PyObject *self)
{
    PyObject_GC_UnTrack(self);
    Py_CLEAR(((PoolLeader *)self)->run);
    Py_TYPE(self)->tp_free(self);
}

static PyMemberDef pool_leader_members[] = {
    {"run", Py_T_OBJECT_EX, offsetof(PoolLeader, run), 0, "what leads"},
    {"open", Py_T_BOOL, offsetof(PoolLeader, open), 0, "whether keys take turns"},
    {NULL, 0, 0, 0, NULL},
};

static PyTypeObject PoolLeaderType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "shapedispatch.hit._native.PoolLeader",
    .tp_doc = "PoolLeader(run)\n--\n\nWhat the keys of one neighbourhood run at calls that take no turn: ``run``, which may"
              " be another from one call on.",
    .tp_basicsize = sizeof(PoolLeader),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = pool_leader_new,
    .tp_dealloc = pool_leader_dealloc,
    .tp_traverse = pool_leader_traverse,
    .tp_clear = pool_leader_clear,
    .tp_members = pool_leader_members,
};

/* A key's calls: each takes a turn that is everyone's, else it runs what leads. */
typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *turns, *leader;           /* CallTurns, PoolLeader */
    PyObject *beside_new, *among_known; /* what samples tell of it: those of calls beside a new key, those of others */
    char called;                        /* whether there was a first call */
} PooledCall;

/* Whether the next turn is the first of those that only go before a candidate's samples. */
static int goes_before(const LaunchTurns *turns)
{
    PyObject *turn = PyTuple_GET_ITEM(turns->turns, turns->next);
    return PyTuple_GET_ITEM(turn, 1) == Py_None && PyLong_AsSsize_t(PyTuple_GET_ITEM(turn, 2)) == turns->left;
}

/* Whether the call comes beside a new key, and others are waited for: not once the candidate's code is warm. */
static int passes(CallTurns *turns)
{
    if (turns->since_new >= BESIDE_NEW)
        turns->passed = 0;
    else if (turns->passed < turns->patience && goes_before(&turns->base))
        return (int)++turns->passed;
    return 0;
}

/* Whether a call of it may be a sample, with the stream that it is on. */
static int takes_turn(const PooledCall *pooled, void **stream)
{
    CallTurns *turns = (CallTurns *)pooled->turns;
    if (!((const PoolLeader *)pooled->leader)->open || turns->base.left == 0 || turns->busy || passes(turns))
        return 0;
    if (may_be_sampled(turns, stream))
        return 1;
    PyErr_Clear();                      /* of torch, where it gives no stream */
    return 0;
}

static PyObject *pooled_call_vectorcall(PyObject *self, PyObject *const *arguments, size_t flags, PyObject *names)
{
    PooledCall *pooled = (PooledCall *)self;
    CallTurns *turns = (CallTurns *)pooled->turns;
    void *stream = NULL;
    note_next(&turns->base);
    turns->since_new = pooled->called ? turns->since_new + (turns->since_new < BESIDE_NEW) : 0;
    pooled->called = 1;
    PyObject *where = turns->since_new < BESIDE_NEW ? pooled->beside_new : pooled->among_known;
    if (takes_turn(pooled, &stream))
        return run_turn(turns, stream, where, arguments, flags, names);
    PyObject *run = Py_NewRef(((PoolLeader *)pooled->leader)->run);     /* which may let go of the key */
    int is_first = turns->since_new == 0;       /* of sizes that never repeat there are no other calls */
    int64_t began_ns = is_first ? now_ns() : 0;
    Py_INCREF(turns);
    PyObject *answer = PyObject_Vectorcall(run, arguments, flags, names);
    turns->first_ns += is_first ? now_ns() - began_ns : 0;
    Py_DECREF(turns);
    Py_DECREF(run);
    return answer;
}

static PyObject *pooled_call_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"turns", "leader", "beside_new", "among_known", NULL};
    PyObject *turns, *leader, *beside_new, *among_known;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!O!OO", names, &CallTurnsType, &turns, &PoolLeaderType, &leader,
        &beside_new, &among_known))
        return NULL;
    PooledCall *pooled = (PooledCall *)type->tp_alloc(type, 0);
    if (pooled == NULL)
        return NULL;
    pooled->vectorcall = pooled_call_vectorcall;
    pooled->turns = Py_NewRef(turns);
    pooled->leader = Py_NewRef(leader);
    pooled->beside_new = Py_NewRef(beside_new);
    pooled->among_known = Py_NewRef(among_known);
    return (PyObject *)pooled;
}

static int pooled_call_traverse(PyObject *self, visitproc visit, void *arg)
{
    return visit_references(REFERENCES((PooledCall *)self, turns, among_known), visit, arg);
}

/* Turns and leader stay, which clear what they hold. */
static int pooled_call_clear(PyObject *self)
{
    PooledCall *pooled = (PooledCall *)self;
    Py_XSETREF(pooled->beside_new, Py_NewRef(Py_None));
    Py_XSETREF(pooled->among_known, Py_NewRef(Py_None));
    return 0;
}

static void pooled_call_dealloc(PyObject *self)
{
    PyObject_GC_UnTrack(self);
    clear_references(REFERENCES((PooledCall *)self, turns, among_known));
    Py_TYPE(self)->tp_free(self);
}

static PyMemberDef pooled_call_members[] = {
    {"leader", Py_T_OBJECT_EX, offsetof(PooledCall, leader), Py_READONLY, "what runs a call that takes no turn"},
    {"__vectorcalloffset__", Py_T_PYSSIZET, offsetof(PooledCall, vectorcall), Py_READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyTypeObject PooledCallType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "shapedispatch.hit._native.PooledCall",
    .tp_doc = "PooledCall(turns, leader, beside_new, among_known)\n--\n\nWhat a key runs that finds out together with"
              " others: the turns of a `CallTurns` that all share, while its\n`PoolLeader` is open and any are left, else"
              " what leads; beside a new key only after so many calls as\n`patience` says. For whose a sample is `collect`"
              " gives (whose, beside_new) there, (whose, among_known) of\nother calls.",
    .tp_basicsize = sizeof(PooledCall),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_new = pooled_call_new,
    .tp_dealloc = pooled_call_dealloc,
    .tp_traverse = pooled_call_traverse,
    .tp_clear = pooled_call_clear,
    .tp_call = PyVectorcall_Call,
    .tp_vectorcall_offset = offsetof(PooledCall, vectorcall),
    .tp_members = pooled_call_members,
};
