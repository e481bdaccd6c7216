/* Keys that find out together what is best: each takes the turns that are everyone's, else all run what leads. */

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

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *turns, *leader;           /* CallTurns, PoolLeader */
    PyObject *first, *later;            /* what samples tell of it: that of its first call, those of others */
    char called;                        /* whether there was a first call */
} PooledCall;

/* Whether a call of it may be a sample, with the stream that it is on. */
static int takes_turn(const PooledCall *pooled, void **stream)
{
    const CallTurns *turns = (const CallTurns *)pooled->turns;
    if (!((const PoolLeader *)pooled->leader)->open || turns->base.left == 0 || turns->busy)
        return 0;
    if (may_be_sampled(turns, stream))
        return 1;
    PyErr_Clear();                      /* of torch, where it gives no stream */
    return 0;
}

static PyObject *pooled_call_vectorcall(PyObject *self, PyObject *const *arguments, size_t flags, PyObject *names)
{
    PooledCall *pooled = (PooledCall *)self;
    PyObject *where = pooled->called ? pooled->later : pooled->first;
    void *stream = NULL;
    pooled->called = 1;
    if (takes_turn(pooled, &stream))
        return run_turn((CallTurns *)pooled->turns, stream, where, arguments, flags, names);
    PyObject *run = Py_NewRef(((PoolLeader *)pooled->leader)->run);     /* which may let go of the key */
    PyObject *answer = PyObject_Vectorcall(run, arguments, flags, names);
    Py_DECREF(run);
    return answer;
}

static PyObject *pooled_call_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"turns", "leader", "first", "later", NULL};
    PyObject *turns, *leader, *first, *later;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!O!OO", names, &CallTurnsType, &turns, &PoolLeaderType, &leader,
        &first, &later))
        return NULL;
    PooledCall *pooled = (PooledCall *)type->tp_alloc(type, 0);
    if (pooled == NULL)
        return NULL;
    pooled->vectorcall = pooled_call_vectorcall;
    pooled->turns = Py_NewRef(turns);
    pooled->leader = Py_NewRef(leader);
    pooled->first = Py_NewRef(first);
    pooled->later = Py_NewRef(later);
    return (PyObject *)pooled;
}

static int pooled_call_traverse(PyObject *self, visitproc visit, void *arg)
{
    return visit_references(REFERENCES((PooledCall *)self, turns, later), visit, arg);
}

/* Turns and leader stay, which clear what they hold. */
static int pooled_call_clear(PyObject *self)
{
    PooledCall *pooled = (PooledCall *)self;
    Py_XSETREF(pooled->first, Py_NewRef(Py_None));
    Py_XSETREF(pooled->later, Py_NewRef(Py_None));
    return 0;
}

static void pooled_call_dealloc(PyObject *self)
{
    PyObject_GC_UnTrack(self);
    clear_references(REFERENCES((PooledCall *)self, turns, later));
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
    .tp_doc = "PooledCall(turns, leader, first, later)\n--\n\nWhat a key runs that finds out together with others: the"
              " turns of a `CallTurns` that all share, while its\n`PoolLeader` is open and any are left, else what leads."
              " For whose a sample is `collect` gives (whose, first)\nwhere it is of its first call, (whose, later) of"
              " others.",
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
