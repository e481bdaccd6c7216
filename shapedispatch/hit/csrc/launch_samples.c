/* What is run as a sample: the candidate whose turn it is, between two events that are read when they are over. */

/*
 * Python says whose turns the next launches are; here they are taken, and noted. Nothing waits: whether the stream was
 * dry is asked before a launch, and what it took the device when Python asks, of those that are over by then. A call
 * that makes many launches may find the end of the one before it at work, and wait for the host all the same: there it
 * counts as dry when the device has begun with it before the host was done.
 */
enum { MOST_NOTED = 128, MOST_POOLED = 256 };   /* the first is MOST_AT_ONCE of online/contest.py */

/* The driver's functions for events; all of them, or none is used. */
static struct {
    int (*create)(void **event, unsigned flags);
    int (*destroy)(void *event);
    int (*record)(void *event, void *stream);
    int (*query)(void *event);
    int (*elapsed)(float *milliseconds, void *start, void *end);
    int (*is_dry)(void *stream);
    int (*exchange_mode)(int *mode);    /* of captures, for this thread */
    int64_t (*clock)(void);             /* NULL: the system's */
} events;

enum { EVENT_FUNCTIONS = 8, RELAXED = 2 };
_Static_assert(sizeof events == EVENT_FUNCTIONS * sizeof(uint64_t), "functions are given by their addresses");

/* Events that are free, all of one context. */
static struct {
    void *context, *free[MOST_POOLED];
    int count;
} pool;

typedef struct {
    PyObject *whose;                    /* NULL: of a launch that was refused */
    void *start, *end;
    int64_t started_ns, host_ns;
    int64_t next_ns;                    /* when the next call came here; 0: none has */
    int dry, over;                      /* the second: the host has come back from it */
} LaunchSample;

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *call, *launch;            /* Python's, for calls and launches that are none of these turns */
    PyObject *turns;                    /* a tuple of (launcher, whose sample or None, how many launches) */
    Py_ssize_t next, left;              /* the turn that is on, and what is left of it */
    Py_ssize_t taken;                   /* launches since Python was here */
    void *context;                      /* that of the events; NULL where there are none, and the host's time is all */
    unsigned first, count;
    LaunchSample samples[MOST_NOTED];
} LaunchTurns;

static int64_t now_ns(void)
{
    struct timespec now;
    if (events.clock != NULL)
        return events.clock();
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* ------------------------------------------------------------------------------------------------------- the events */

/* One of the launcher's context, NULL where the driver gives none. */
static void *take_event(void *context)
{
    void *event = NULL;
    if (pool.context == context && pool.count > 0)
        return pool.free[--pool.count];
    return events.create(&event, 0) == 0 ? event : NULL;
}

static void give_back(void *event, void *context)
{
    if (pool.count == 0)
        pool.context = context;
    if (event != NULL && pool.context == context && pool.count < MOST_POOLED)
        pool.free[pool.count++] = event;
    else if (event != NULL && events.destroy != NULL)
        events.destroy(event);
}

/* Another thread may be capturing: what this one asks is no part of that, and must not spoil it. */
static int ask_in_peace(int (*ask)(void *), void *of)
{
    int mode = RELAXED, known = events.exchange_mode(&mode) == 0, answer = ask(of);
    if (known)
        events.exchange_mode(&mode);
    return answer;
}

/* ------------------------------------------------------------------------------------------------------ the samples */

/* The launcher whose turn it is, borrowed; NULL where Python is to say. */
static CudaLauncher *launcher_of_turn(const LaunchTurns *turns)
{
    return turns->left > 0 ? (CudaLauncher *)PyTuple_GET_ITEM(PyTuple_GET_ITEM(turns->turns, turns->next), 0) : NULL;
}

static void begin_turn(LaunchTurns *turns, Py_ssize_t next)
{
    turns->next = next;
    turns->left = next < PyTuple_GET_SIZE(turns->turns)
        ? PyLong_AsSsize_t(PyTuple_GET_ITEM(PyTuple_GET_ITEM(turns->turns, next), 2)) : 0;
}

static void begin_turns(LaunchTurns *turns, PyObject *given)
{
    Py_XSETREF(turns->turns, Py_NewRef(given));
    turns->taken = 0;
    begin_turn(turns, 0);
}

/* One run of the turn is made: whose sample it is, borrowed. The tuple stays until Python gives another. */
static PyObject *pass_turn(LaunchTurns *turns)
{
    PyObject *whose = PyTuple_GET_ITEM(PyTuple_GET_ITEM(turns->turns, turns->next), 1);
    turns->taken++;
    if (--turns->left == 0)
        begin_turn(turns, turns->next + 1);
    return whose;
}

static int take_events(LaunchSample *sample, void *context)
{
    sample->start = take_event(context);
    sample->end = take_event(context);
    if (sample->start != NULL && sample->end != NULL)
        return 1;
    give_back(sample->start, context);
    give_back(sample->end, context);
    return 0;
}

/* A sample with the first event recorded; NULL where there can be none now. */
static LaunchSample *begin_sample(LaunchTurns *turns, PyObject *whose, void *stream)
{
    LaunchSample *sample = &turns->samples[(turns->first + turns->count) % MOST_NOTED];
    if (whose == Py_None || turns->count >= MOST_NOTED)
        return NULL;
    sample->start = sample->end = NULL;
    sample->dry = sample->over = 0;
    sample->next_ns = 0;
    if (turns->context != NULL && !take_events(sample, turns->context))
        return NULL;
    turns->count++;
    sample->whose = Py_NewRef(whose);
    if (turns->context != NULL) {
        sample->dry = ask_in_peace(events.is_dry, stream) == 0;
        events.record(sample->start, stream);
    }
    sample->started_ns = now_ns();
    return sample;
}

static LaunchSample *take_turn(LaunchTurns *turns, void *stream)
{
    int timed = turns->context == launcher_of_turn(turns)->context;
    PyObject *whose = pass_turn(turns);
    return timed ? begin_sample(turns, whose, stream) : NULL;
}

static void end_sample(LaunchSample *sample, void *stream, int error, int of_many)
{
    sample->host_ns = now_ns() - sample->started_ns;
    if (of_many && sample->start != NULL && !sample->dry)
        sample->dry = ask_in_peace(events.query, sample->start) == 0;
    if ((sample->end != NULL && events.record(sample->end, stream) != 0) || error != 0)
        Py_CLEAR(sample->whose);
    sample->over = 1;
}

/* Another call has come, whoever's turn it is: so long after the newest sample its caller was back. */
static void note_next(LaunchTurns *turns)
{
    LaunchSample *newest = &turns->samples[(turns->first + turns->count + MOST_NOTED - 1) % MOST_NOTED];
    if (turns->count > 0 && newest->over && newest->next_ns == 0)
        newest->next_ns = now_ns();
}

/* Whether all that the sample asks for is known. */
static int is_known(const LaunchSample *sample)
{
    if (!sample->over || sample->whose == NULL || sample->end == NULL)
        return sample->over;
    return ask_in_peace(events.query, sample->end) == 0;
}

static void drop_first(LaunchTurns *turns)
{
    LaunchSample *sample = &turns->samples[turns->first];
    give_back(sample->start, turns->context);
    give_back(sample->end, turns->context);
    Py_CLEAR(sample->whose);
    turns->first = (turns->first + 1) % MOST_NOTED;
    turns->count--;
}

/* ---------------------------------------------------------------------------------------------- as Python sees them */

PyDoc_STRVAR(begin_doc, "begin(turns, /)\n--\n\n"
    "Let the next launches be these: a tuple of (launcher, whose sample or None, how many launches).");

static PyObject *turns_begin(PyObject *self, PyObject *given)
{
    LaunchTurns *turns = (LaunchTurns *)self;
    if (!PyTuple_CheckExact(given))
        return PyErr_Format(PyExc_TypeError, "begin takes a tuple");
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(given); i++) {
        PyObject *turn = PyTuple_GET_ITEM(given, i);
        if (!PyTuple_CheckExact(turn) || PyTuple_GET_SIZE(turn) != 3
            || !Py_IS_TYPE(PyTuple_GET_ITEM(turn, 0), &CudaLauncherType)
            || !PyLong_CheckExact(PyTuple_GET_ITEM(turn, 2)) || PyLong_AsSsize_t(PyTuple_GET_ITEM(turn, 2)) < 1)
            return PyErr_Format(PyExc_TypeError, "%R is no turn", turn);
        turns->context = ((CudaLauncher *)PyTuple_GET_ITEM(turn, 0))->context;
    }
    begin_turns(turns, given);
    Py_RETURN_NONE;
}

PyDoc_STRVAR(collect_doc, "collect()\n--\n\n"
    "The samples that are over, in order, each as (whose, started ns, host ns, device us, dry, the microseconds after its\n"
    "start at which the next call came, None where none has); they leave.");

static PyObject *turns_collect(PyObject *self, PyObject *Py_UNUSED(none))
{
    LaunchTurns *turns = (LaunchTurns *)self;
    PyObject *found = PyList_New(0);
    while (found != NULL && turns->count > 0) {
        LaunchSample *sample = &turns->samples[turns->first];
        float milliseconds = 0;
        if (!is_known(sample))
            break;
        if (sample->whose != NULL
            && (sample->end == NULL || events.elapsed(&milliseconds, sample->start, sample->end) == 0)) {
            PyObject *since = sample->next_ns == 0 ? Py_NewRef(Py_None)
                : PyFloat_FromDouble((double)(sample->next_ns - sample->started_ns) / 1e3);
            PyObject *one = Py_BuildValue("OLLdON", sample->whose, (long long)sample->started_ns,
                (long long)sample->host_ns, (double)milliseconds * 1e3, sample->dry ? Py_True : Py_False, since);
            if (one == NULL || PyList_Append(found, one) < 0)
                Py_CLEAR(found);
            Py_XDECREF(one);
        }
        drop_first(turns);
    }
    return found;
}

static PyObject *turns_vectorcall(PyObject *self, PyObject *const *arguments, size_t flags, PyObject *names)
{
    return PyObject_Vectorcall(((LaunchTurns *)self)->call, arguments, flags, names);
}

static PyObject *turns_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"call", "launch", NULL};
    PyObject *call, *launch;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO", names, &call, &launch))
        return NULL;
    if (events.create == NULL)
        return PyErr_Format(PyExc_RuntimeError, "there is no driver to time launches with");
    LaunchTurns *turns = (LaunchTurns *)type->tp_alloc(type, 0);
    if (turns == NULL || (turns->turns = PyTuple_New(0)) == NULL) {
        Py_XDECREF(turns);
        return NULL;
    }
    turns->vectorcall = turns_vectorcall;
    turns->call = Py_NewRef(call);
    turns->launch = Py_NewRef(launch);
    return (PyObject *)turns;
}

static int turns_traverse(PyObject *self, visitproc visit, void *arg)
{
    LaunchTurns *turns = (LaunchTurns *)self;
    for (unsigned i = 0; i < turns->count; i++)
        Py_VISIT(turns->samples[(turns->first + i) % MOST_NOTED].whose);
    return visit_references(REFERENCES(turns, call, turns), visit, arg);
}

/* What is called stays callable: None says so in Python's own words. */
static int turns_clear(PyObject *self)
{
    LaunchTurns *turns = (LaunchTurns *)self;
    turns->left = 0;
    Py_XSETREF(turns->call, Py_NewRef(Py_None));
    Py_XSETREF(turns->launch, Py_NewRef(Py_None));
    Py_XSETREF(turns->turns, PyTuple_New(0));
    return 0;
}

static void turns_dealloc(PyObject *self)
{
    LaunchTurns *turns = (LaunchTurns *)self;
    PyObject_GC_UnTrack(self);
    while (turns->count > 0)
        drop_first(turns);
    clear_references(REFERENCES(turns, call, turns));
    Py_TYPE(self)->tp_free(self);
}

static PyMethodDef turns_methods[] = {
    {"begin", turns_begin, METH_O, begin_doc},
    {"collect", turns_collect, METH_NOARGS, collect_doc},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef turns_members[] = {
    {"launch", Py_T_OBJECT_EX, offsetof(LaunchTurns, launch), Py_READONLY, "a hit, in Python"},
    {"left", Py_T_PYSSIZET, offsetof(LaunchTurns, left), Py_READONLY, "of the turn that is on; 0: all are taken"},
    {"taken", Py_T_PYSSIZET, offsetof(LaunchTurns, taken), Py_READONLY, "launches in C since the last `begin`"},
    {"waiting", Py_T_UINT, offsetof(LaunchTurns, count), Py_READONLY, "samples that were not collected yet"},
    {"__vectorcalloffset__", Py_T_PYSSIZET, offsetof(LaunchTurns, vectorcall), Py_READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyTypeObject LaunchTurnsType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "shapedispatch.hit._native.LaunchTurns",
    .tp_doc = "LaunchTurns(call, launch)\n--\n\nWhat a kernel's key runs while it is learned from its launches. Hits in\n"
              "C take the turns that were begun, each launching another candidate once; others are `launch`'s, and\n"
              "what is no hit is `call`'s. Raises RuntimeError where the driver has no events.",
    .tp_basicsize = sizeof(LaunchTurns),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_new = turns_new,
    .tp_dealloc = turns_dealloc,
    .tp_traverse = turns_traverse,
    .tp_clear = turns_clear,
    .tp_call = PyVectorcall_Call,
    .tp_vectorcall_offset = offsetof(LaunchTurns, vectorcall),
    .tp_methods = turns_methods,
    .tp_members = turns_members,
};

#ifndef _WIN32
/* Without one of them launches are sampled in Python. */
static void find_events(void *library)
{
    static const char *const names[EVENT_FUNCTIONS - 1] = {"cuEventCreate", "cuEventDestroy_v2", "cuEventRecord",
        "cuEventQuery", "cuEventElapsedTime", "cuStreamQuery", "cuThreadExchangeStreamCaptureMode"};
    void *found[EVENT_FUNCTIONS] = {NULL};
    for (int i = 0; i < EVENT_FUNCTIONS - 1; i++)
        if ((found[i] = dlsym(library, names[i])) == NULL)
            return;
    memcpy(&events, found, sizeof events);
}
#endif

PyDoc_STRVAR(use_events_doc, "use_events(functions=None, /)\n--\n\n"
    "Find the CUDA driver's functions for events, if it has all that are needed. Tests give the addresses of functions\n"
    "in their place, in the order of `events`; 0 means none.");

static PyObject *use_events(PyObject *Py_UNUSED(module), PyObject *args)
{
    unsigned long long at[EVENT_FUNCTIONS];
    pool.count = 0;                     /* of another driver, if there are any */
    if (PyTuple_GET_SIZE(args) == 0) {
#ifndef _WIN32
        void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
        if (library != NULL)
            find_events(library);
#endif
        Py_RETURN_NONE;
    }
    if (!PyArg_ParseTuple(args, "(KKKKKKKK)", &at[0], &at[1], &at[2], &at[3], &at[4], &at[5], &at[6], &at[7]))
        return NULL;
    memcpy(&events, at, sizeof events);
    Py_RETURN_NONE;
}
