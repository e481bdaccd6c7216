/* The guards of several builds as one, for a key of which any of them may run: asked at each hit, in order. */

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *checks;                   /* a tuple of check(args, kwargs) */
} AllChecks;

static PyObject *all_checks_vectorcall(PyObject *self, PyObject *const *call, size_t flags, PyObject *names)
{
    PyObject *checks = ((AllChecks *)self)->checks;
    if (PyVectorcall_NARGS(flags) != 2 || names != NULL || checks == NULL)
        return PyErr_Format(PyExc_TypeError, "checks take the arguments of a call as a tuple and a dict");
    int holding = 1;
    Py_INCREF(checks);                  /* what is asked may let go of this */
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(checks) && holding > 0; i++) {
        PyObject *verdict = PyObject_Vectorcall(PyTuple_GET_ITEM(checks, i), call, 2, NULL);
        holding = verdict == NULL ? -1 : PyObject_IsTrue(verdict);
        Py_XDECREF(verdict);
    }
    Py_DECREF(checks);
    return holding < 0 ? NULL : PyBool_FromLong(holding);
}

static PyObject *all_checks_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"checks", NULL};
    PyObject *checks;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!", names, &PyTuple_Type, &checks))
        return NULL;
    AllChecks *all = (AllChecks *)type->tp_alloc(type, 0);
    if (all == NULL)
        return NULL;
    all->vectorcall = all_checks_vectorcall;
    all->checks = Py_NewRef(checks);
    return (PyObject *)all;
}

static int all_checks_traverse(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(((AllChecks *)self)->checks);
    return 0;
}

static int all_checks_clear(PyObject *self)
{
    Py_CLEAR(((AllChecks *)self)->checks);
    return 0;
}

static PyMemberDef all_checks_members[] = {
    {"__vectorcalloffset__", Py_T_PYSSIZET, offsetof(AllChecks, vectorcall), Py_READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyTypeObject AllChecksType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "shapedispatch.hit._native.AllChecks",
    .tp_doc = "AllChecks(checks)\n--\n\nCalled as check(args, kwargs): whether all of a tuple of such checks hold.",
    .tp_basicsize = sizeof(AllChecks),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_new = all_checks_new,
    .tp_dealloc = clear_and_free,
    .tp_traverse = all_checks_traverse,
    .tp_clear = all_checks_clear,
    .tp_call = PyVectorcall_Call,
    .tp_vectorcall_offset = offsetof(AllChecks, vectorcall),
    .tp_members = all_checks_members,
};
