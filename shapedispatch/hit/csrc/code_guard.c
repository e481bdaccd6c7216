/* Whether classes and functions are as they were: asked at each hit of a build that was made of their code. */

/* A function as it was, by a weak reference. Keyword defaults may change in place, so they are a copy. */
typedef struct {
    PyObject *reference, *code, *defaults, *keyword_defaults;
} Function;

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *check;                    /* asked where something may have changed: whether nothing has */
    PyObject *dead;                     /* a list; while it is empty, the classes are alive */
    Py_ssize_t class_count, function_count;
    PyTypeObject **classes;             /* not held */
    unsigned *versions;                 /* theirs when they were checked last; 0: not yet, or there is none */
    Function *functions;
} CodeGuard;

static int classes_unchanged(const CodeGuard *guard)
{
    for (Py_ssize_t i = 0; i < guard->class_count; i++)
        if (!has_version(guard->classes[i], guard->versions[i]))
            return 0;
    return 1;
}

static int same_items(PyObject *copy, PyObject *dict)
{
    if (copy == NULL || dict == NULL)
        return copy == dict;
    Py_ssize_t place = 0;
    PyObject *name, *value;
    if (PyDict_GET_SIZE(copy) != PyDict_GET_SIZE(dict))
        return 0;
    while (PyDict_Next(copy, &place, &name, &value))
        if (PyDict_GetItemWithError(dict, name) != value)
            return 0;
    return 1;
}

/* One that is gone is no more found where it was, which others ask. */
static int function_unchanged(const Function *was)
{
    PyObject *now = referent(was->reference);
    int unchanged = now == NULL || (PyFunction_GET_CODE(now) == was->code
        && PyFunction_GET_DEFAULTS(now) == was->defaults
        && same_items(was->keyword_defaults, PyFunction_GET_KW_DEFAULTS(now)));
    Py_XDECREF(now);
    return unchanged;
}

static int functions_unchanged(const CodeGuard *guard)
{
    for (Py_ssize_t i = 0; i < guard->function_count; i++)
        if (!function_unchanged(&guard->functions[i]))
            return 0;
    return 1;
}

static int all_live(const CodeGuard *guard)
{
    return PyList_GET_SIZE(guard->dead) == 0;
}

/* Python checks: versions are read before, so that what changes meanwhile is seen the next time. */
static PyObject *check_in_python(CodeGuard *guard)
{
    unsigned *versions = PyMem_Calloc((size_t)guard->class_count + 1, sizeof *versions);
    if (versions == NULL)
        return PyErr_NoMemory();
    for (Py_ssize_t i = 0; i < guard->class_count && all_live(guard); i++)
        versions[i] = class_version(guard->classes[i], torch.calls);
    PyObject *verdict = PyObject_CallNoArgs(guard->check);
    if (verdict == Py_True)
        memcpy(guard->versions, versions, (size_t)guard->class_count * sizeof *versions);
    PyMem_Free(versions);
    return verdict;
}

static PyObject *code_guard_vectorcall(PyObject *self, PyObject *const *Py_UNUSED(args), size_t flags, PyObject *names)
{
    CodeGuard *guard = (CodeGuard *)self;
    if (PyVectorcall_NARGS(flags) != 0 || names != NULL)
        return PyErr_Format(PyExc_TypeError, "takes no arguments");
    if (all_live(guard) && classes_unchanged(guard) && functions_unchanged(guard))
        Py_RETURN_TRUE;
    return check_in_python(guard);
}

static int code_guard_traverse(PyObject *self, visitproc visit, void *arg)
{
    CodeGuard *guard = (CodeGuard *)self;
    int stop = visit_references(REFERENCES(guard, check, dead), visit, arg);
    for (Py_ssize_t i = 0; stop == 0 && i < guard->function_count; i++)
        stop = visit_references(REFERENCES(&guard->functions[i], reference, keyword_defaults), visit, arg);
    return stop;
}

static void code_guard_dealloc(PyObject *self)
{
    CodeGuard *guard = (CodeGuard *)self;
    PyObject_GC_UnTrack(self);
    for (Py_ssize_t i = 0; i < guard->function_count; i++)
        clear_references(REFERENCES(&guard->functions[i], reference, keyword_defaults));
    clear_references(REFERENCES(guard, check, dead));
    PyMem_Free(guard->classes);
    PyMem_Free(guard->versions);
    PyMem_Free(guard->functions);
    Py_TYPE(self)->tp_free(self);
}

static int take_function(Function *was, PyObject *function)
{
    PyObject *keyword_defaults = PyFunction_GET_KW_DEFAULTS(function);
    was->reference = PyWeakref_NewRef(function, NULL);
    was->keyword_defaults = keyword_defaults == NULL ? NULL : PyDict_Copy(keyword_defaults);
    was->code = Py_NewRef(PyFunction_GET_CODE(function));
    was->defaults = Py_XNewRef(PyFunction_GET_DEFAULTS(function));
    return was->reference != NULL && (keyword_defaults == NULL || was->keyword_defaults != NULL);
}

static int take_functions(CodeGuard *guard, PyObject *functions)
{
    guard->functions = PyMem_Calloc((size_t)PyTuple_GET_SIZE(functions) + 1, sizeof *guard->functions);
    for (Py_ssize_t i = 0; guard->functions != NULL && i < PyTuple_GET_SIZE(functions); i++) {
        PyObject *function = PyTuple_GET_ITEM(functions, i);
        if (!PyFunction_Check(function))
            return PyErr_Format(PyExc_TypeError, "%R is no function", function) != NULL;
        guard->function_count++;       /* what was taken of it is given back, also of half a one */
        if (!take_function(&guard->functions[i], function))
            return 0;
    }
    return guard->functions != NULL || PyErr_NoMemory() != NULL;
}

static int take_classes(CodeGuard *guard, PyObject *classes)
{
    Py_ssize_t count = PyTuple_GET_SIZE(classes);
    guard->classes = PyMem_Calloc((size_t)count + 1, sizeof *guard->classes);
    guard->versions = PyMem_Calloc((size_t)count + 1, sizeof *guard->versions);
    if (guard->classes == NULL || guard->versions == NULL)
        return PyErr_NoMemory() != NULL;
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *cls = PyTuple_GET_ITEM(classes, i);
        if (!PyType_Check(cls))
            return PyErr_Format(PyExc_TypeError, "%R is no class", cls) != NULL;
        guard->classes[i] = (PyTypeObject *)cls;
    }
    guard->class_count = count;
    return 1;
}

static PyObject *code_guard_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"classes", "functions", "dead", "check", NULL};
    PyObject *classes, *functions, *dead, *check;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!O!O!O", names, &PyTuple_Type, &classes, &PyTuple_Type, &functions,
            &PyList_Type, &dead, &check))
        return NULL;
    CodeGuard *guard = (CodeGuard *)type->tp_alloc(type, 0);
    if (guard == NULL)
        return NULL;
    guard->vectorcall = code_guard_vectorcall;
    guard->check = Py_NewRef(check);
    guard->dead = Py_NewRef(dead);
    if (!take_classes(guard, classes) || !take_functions(guard, functions))
        Py_CLEAR(guard);
    return (PyObject *)guard;
}

/* Without tp_clear: what it holds can be cleared, and one that is half gone would answer. */
static PyTypeObject CodeGuardType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "shapedispatch.hit._native.CodeGuard",
    .tp_doc = "CodeGuard(classes, functions, dead, check)\n--\n\n"
              "Called, whether they are as they were when it was made; check() is asked where C cannot say.\n"
              "Classes are not held: something must stand in the list `dead` before one of them goes.",
    .tp_basicsize = sizeof(CodeGuard),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_new = code_guard_new,
    .tp_dealloc = code_guard_dealloc,
    .tp_traverse = code_guard_traverse,
    .tp_vectorcall_offset = offsetof(CodeGuard, vectorcall),
    .tp_call = PyVectorcall_Call,
};
