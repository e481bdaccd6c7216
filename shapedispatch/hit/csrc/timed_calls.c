/* The calls of a key that waits for builds: how long each takes is added up, and now and then Python is asked. */

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *run;                      /* what runs a call */
    PyObject *ask;                      /* what runs one where it is to be seen whether there is something better */
    double spent_s, until_s;            /* what calls have taken since `collect`; from how much on `ask` runs them */
    unsigned news;                      /* how much of it there was then */
} TimedCalls;

static unsigned news;                   /* how often something was built that any of them may be asked for */

PyDoc_STRVAR(tell_news_doc, "tell_news()\n--\n\nHave the next call of each `TimedCalls` ask.");

static PyObject *tell_news(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    news++;
    Py_RETURN_NONE;
}

static PyObject *timed_calls_vectorcall(PyObject *self, PyObject *const *arguments, size_t flags, PyObject *names)
{
    TimedCalls *calls = (TimedCalls *)self;
    int asks = calls->spent_s >= calls->until_s || calls->news != news;
    PyObject *run = Py_NewRef(asks ? calls->ask : calls->run);  /* which may let go of the key */
    Py_INCREF(self);
    int64_t began_ns = now_ns();
    PyObject *answer = PyObject_Vectorcall(run, arguments, flags, names);
    if (!asks)
        calls->spent_s += (double)(now_ns() - began_ns) * 1e-9;
    Py_DECREF(self);
    Py_DECREF(run);
    return answer;
}

PyDoc_STRVAR(collect_timed_doc, "collect()\n--\n\n"
    "How many seconds calls have taken since the last time; the next one asks, unless `begin` says otherwise.");

static PyObject *timed_calls_collect(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    TimedCalls *calls = (TimedCalls *)self;
    double spent_s = calls->spent_s;
    calls->spent_s = calls->until_s = 0.0;
    calls->news = news;
    return PyFloat_FromDouble(spent_s);
}

PyDoc_STRVAR(begin_timed_doc, "begin(until_s, /)\n--\n\n"
    "Let calls be run until they have taken so many seconds since `collect`, or there is news since then.");

static PyObject *timed_calls_begin(PyObject *self, PyObject *given)
{
    TimedCalls *calls = (TimedCalls *)self;
    double until_s = PyFloat_AsDouble(given);
    if (until_s == -1.0 && PyErr_Occurred())
        return NULL;
    calls->until_s = until_s;
    Py_RETURN_NONE;
}

static PyObject *timed_calls_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"run", "ask", NULL};
    PyObject *run, *ask;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO", names, &run, &ask))
        return NULL;
    TimedCalls *calls = (TimedCalls *)type->tp_alloc(type, 0);
    if (calls == NULL)
        return NULL;
    calls->vectorcall = timed_calls_vectorcall;
    calls->run = Py_NewRef(run);
    calls->ask = Py_NewRef(ask);
    calls->news = news;
    return (PyObject *)calls;
}

static int timed_calls_traverse(PyObject *self, visitproc visit, void *arg)
{
    return visit_references(REFERENCES((TimedCalls *)self, run, ask), visit, arg);
}

/* What is asked stays callable: a call may come while what refers to this is let go of. */
static int timed_calls_clear(PyObject *self)
{
    Py_XSETREF(((TimedCalls *)self)->ask, Py_NewRef(((TimedCalls *)self)->run));
    return 0;
}

static void timed_calls_dealloc(PyObject *self)
{
    PyObject_GC_UnTrack(self);
    clear_references(REFERENCES((TimedCalls *)self, run, ask));
    Py_TYPE(self)->tp_free(self);
}

static PyMethodDef timed_calls_methods[] = {
    {"begin", timed_calls_begin, METH_O, begin_timed_doc},
    {"collect", timed_calls_collect, METH_NOARGS, collect_timed_doc},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef timed_calls_members[] = {
    {"run", Py_T_OBJECT_EX, offsetof(TimedCalls, run), Py_READONLY, "what runs a call"},
    {"__vectorcalloffset__", Py_T_PYSSIZET, offsetof(TimedCalls, vectorcall), Py_READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyTypeObject TimedCallsType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "shapedispatch.hit._native.TimedCalls",
    .tp_doc = "TimedCalls(run, ask)\n--\n\nRuns calls by ``run`` and adds up what they take, until `begin`'s seconds are"
              " spent or `tell_news` is called; from then on by ``ask``.",
    .tp_basicsize = sizeof(TimedCalls),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_new = timed_calls_new,
    .tp_dealloc = timed_calls_dealloc,
    .tp_traverse = timed_calls_traverse,
    .tp_clear = timed_calls_clear,
    .tp_call = PyVectorcall_Call,
    .tp_vectorcall_offset = offsetof(TimedCalls, vectorcall),
    .tp_methods = timed_calls_methods,
    .tp_members = timed_calls_members,
};
