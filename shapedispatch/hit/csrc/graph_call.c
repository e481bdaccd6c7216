/*
 * The graph of a build, as the code that Dynamo made calls it: past the wrappers around what Inductor made. And that
 * itself, past the Python that looks where each of its inputs begins.
 *
 * hit/call.py has the law, `past_wrappers`. Where Inductor has written all of a graph, autograd's part of the dispatcher
 * is left out meanwhile, as it is below a kernel of autograd's: grad mode is off, so that it would only pass on what it is
 * given, at 0.1 us an operator.
 */

/* A guard of torch's libraries, which has keys left out as long as it lives; found as symbols are. */
static struct {
    void (*enter)(void *guard, uint64_t keys);
    void (*leave)(void *guard);
    uint64_t keys;                      /* autograd's; 0: they are not left out */
} beneath;

PyDoc_STRVAR(leave_out_doc, "leave_out(keys, /)\n--\n\n"
    "Have these dispatch keys, a bit each, be left out where a graph runs that Inductor has written; whether that is done.");

static PyObject *leave_out(PyObject *Py_UNUSED(module), PyObject *keys)
{
    uint64_t wanted = PyLong_AsUnsignedLongLong(keys);
    if (PyErr_Occurred())
        return NULL;
    beneath.enter = (void (*)(void *, uint64_t))torch_symbol(C10,
        "_ZN3c104impl23ExcludeDispatchKeyGuardC1ENS_14DispatchKeySetE");
    beneath.leave = (void (*)(void *))torch_symbol(C10, "_ZN3c104impl23ExcludeDispatchKeyGuardD1Ev");
    beneath.keys = beneath.enter == NULL || beneath.leave == NULL ? 0 : wanted;
    return PyBool_FromLong(beneath.keys != 0);
}

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *whole;                    /* whole(*inputs): where there is more to do than to run the code */
    PyObject *found;                    /* a list, empty until the code is found; None in it: there always is more */
    char written;                       /* whether all of it is Inductor's, and nobody else's operators run */
} GraphCall;

/* A profiler is shown the whole; and where grad mode is on it is turned off, which Python does. */
static int runs_code_alone(const GraphCall *graph)
{
    static SeenVariable profiling;
    uint64_t grad;
    return PyList_GET_SIZE(graph->found) == 1 && PyList_GET_ITEM(graph->found, 0) != Py_None
        && !variable_is_at_least(torch.profiler_names, torch.profiler_enabled, 1, &profiling)
        && word_from(&torch.grad_mode, &grad) && grad == 0;
}

/* The code takes its inputs as a list, which it empties. */
static PyObject *run_code(const GraphCall *graph, PyObject *const *inputs, Py_ssize_t count)
{
    PyObject *given = PyList_New(count);
    if (given == NULL)
        return NULL;
    for (Py_ssize_t i = 0; i < count; i++)
        PyList_SET_ITEM(given, i, Py_NewRef(inputs[i]));
    uint64_t guard[8], keys = graph->written ? beneath.keys : 0;      /* it is of two words */
    PyObject *code = Py_NewRef(PyList_GET_ITEM(graph->found, 0));
    if (keys != 0)
        beneath.enter(guard, keys);
    PyObject *made = PyObject_CallOneArg(code, given);
    if (keys != 0)
        beneath.leave(guard);
    Py_DECREF(code);
    Py_DECREF(given);
    return made;
}

static PyObject *graph_call_vectorcall(PyObject *self, PyObject *const *inputs, size_t flags, PyObject *names)
{
    const GraphCall *graph = (GraphCall *)self;
    if (graph->whole == NULL)           /* the collector has cleared it */
        return PyErr_Format(PyExc_RuntimeError, "the build of this graph is being collected");
    if (names == NULL && runs_code_alone(graph))
        return run_code(graph, inputs, PyVectorcall_NARGS(flags));
    PyErr_Clear();
    return PyObject_Vectorcall(graph->whole, inputs, flags, names);
}

static int graph_call_traverse(PyObject *self, visitproc visit, void *arg)
{
    return visit_references(REFERENCES((GraphCall *)self, whole, found), visit, arg);
}

static int graph_call_clear(PyObject *self)
{
    clear_references(REFERENCES((GraphCall *)self, whole, found));
    return 0;
}

static PyObject *graph_call_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(kwargs))
{
    PyObject *whole, *found;
    int written;
    if (!PyArg_ParseTuple(args, "OO!p", &whole, &PyList_Type, &found, &written))
        return NULL;
    GraphCall *graph = (GraphCall *)type->tp_alloc(type, 0);
    if (graph != NULL) {
        graph->vectorcall = graph_call_vectorcall;
        graph->whole = Py_NewRef(whole);
        graph->found = Py_NewRef(found);
        graph->written = (char)written;
    }
    return (PyObject *)graph;
}

static PyTypeObject GraphCallType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "shapedispatch.hit._native.GraphCall",
    .tp_doc = "GraphCall(whole, found, written)\n--\n\n"
              "Called as whole(*inputs): runs found[0]([*inputs]) where that is there and grad mode and profilers are off.",
    .tp_basicsize = sizeof(GraphCall),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_new = graph_call_new,
    .tp_dealloc = clear_and_free,
    .tp_traverse = graph_call_traverse,
    .tp_clear = graph_call_clear,
    .tp_vectorcall_offset = offsetof(GraphCall, vectorcall),
    .tp_call = PyVectorcall_Call,
};

/* ------------------------------------------------------------------------------------------------ aligned inputs */

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *code;                     /* code([*inputs]): where those at the places begin at multiples of 16 bytes */
    PyObject *looking;                  /* the same of any: it copies what does not */
    PyObject *places;                   /* a tuple of integers */
} AlignedCode;

static int begins_aligned(PyObject *tensor)
{
    uint64_t keyset;
    View view;
    void *data;
    if ((Py_TYPE(tensor) == torch.tensor || Py_TYPE(tensor) == torch.parameter) && keyset_of(tensor, &keyset)) {
        const Compared *before = shim.in_use ? compared(keyset) : NULL;     /* all else that a view shows takes longer */
        if (before != NULL && before->alike && shim.ask.data((char *)tensor + torch.impl_at, &data) == 0)
            return ((uintptr_t)data & 15) == 0;
        if (view_of(tensor, keyset, &view, 0))
            return (((uintptr_t)view.data + view.byte_offset) & 15) == 0;
    }
    PyErr_Clear();
    return 0;
}

static int all_begin_aligned(const AlignedCode *aligned, PyObject *inputs)
{
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(aligned->places); i++) {
        Py_ssize_t place = PyLong_AsSsize_t(PyTuple_GET_ITEM(aligned->places, i));
        if (place < 0 || place >= PyList_GET_SIZE(inputs) || !begins_aligned(PyList_GET_ITEM(inputs, place)))
            return 0;
    }
    return 1;
}

static PyObject *aligned_code_vectorcall(PyObject *self, PyObject *const *given, size_t flags, PyObject *names)
{
    const AlignedCode *aligned = (AlignedCode *)self;
    if (aligned->looking == NULL)       /* the collector has cleared it */
        return PyErr_Format(PyExc_RuntimeError, "the code of this graph is being collected");
    int boxed = names == NULL && PyVectorcall_NARGS(flags) == 1 && PyList_CheckExact(given[0]);
    int alone = boxed && torch.exchange != NULL && all_begin_aligned(aligned, given[0]);
    return PyObject_Vectorcall(alone ? aligned->code : aligned->looking, given, flags, names);
}

static int aligned_code_traverse(PyObject *self, visitproc visit, void *arg)
{
    return visit_references(REFERENCES((AlignedCode *)self, code, looking), visit, arg);
}

static int aligned_code_clear(PyObject *self)
{
    clear_references(REFERENCES((AlignedCode *)self, code, looking));
    Py_CLEAR(((AlignedCode *)self)->places);
    return 0;
}

static PyObject *aligned_code_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(kwargs))
{
    PyObject *code, *looking, *places;
    if (!PyArg_ParseTuple(args, "OOO!", &code, &looking, &PyTuple_Type, &places))
        return NULL;
    AlignedCode *aligned = (AlignedCode *)type->tp_alloc(type, 0);
    if (aligned != NULL) {
        aligned->vectorcall = aligned_code_vectorcall;
        aligned->code = Py_NewRef(code);
        aligned->looking = Py_NewRef(looking);
        aligned->places = Py_NewRef(places);
    }
    return (PyObject *)aligned;
}

static PyTypeObject AlignedCodeType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "shapedispatch.hit._native.AlignedCode",
    .tp_doc = "AlignedCode(code, looking, places)\n--\n\n"
              "Called with a list: as code where the tensors at these places of it begin at multiples of 16 bytes, else\n"
              "as looking.",
    .tp_basicsize = sizeof(AlignedCode),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_new = aligned_code_new,
    .tp_dealloc = clear_and_free,
    .tp_traverse = aligned_code_traverse,
    .tp_clear = aligned_code_clear,
    .tp_vectorcall_offset = offsetof(AlignedCode, vectorcall),
    .tp_call = PyVectorcall_Call,
};
