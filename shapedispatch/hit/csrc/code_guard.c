/* Whether classes and functions are as they were: asked at each hit of a build that was made of their code. */

/* A function as it was, by a weak reference. Keyword defaults may change in place, so they are a copy. */
typedef struct {
    PyObject *reference, *code, *defaults, *keyword_defaults;
} Function;

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *lookup;                     /* asked where something may have changed: whether it stands all the same */
    PyObject *dead;                     /* a list; while it is empty, the classes are alive */
    Py_ssize_t class_count, function_count;
    PyTypeObject **classes;             /* not held */
    unsigned *versions;                 /* theirs when they were looked at last; 0: not yet, or none that tells */
    Function *functions;
} CodeGuard;

static int classes_stand(const CodeGuard *guard)
{
    for (Py_ssize_t i = 0; i < guard->class_count; i++)
        if (guard->versions[i] == 0 || guard->versions[i] != guard->classes[i]->tp_version_tag)
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

/* A new reference; NULL where it is gone. */
static PyFunctionObject *function_now(PyObject *reference)
{
#if PY_VERSION_HEX >= 0x030D0000
    PyObject *now;
    if (PyWeakref_GetRef(reference, &now) < 0)
        PyErr_Clear();                  /* it is a weak reference */
    return (PyFunctionObject *)now;
#else
    PyObject *now = PyWeakref_GET_OBJECT(reference);
    return now == Py_None ? NULL : (PyFunctionObject *)Py_NewRef(now);
#endif
}

/* One that is gone is no more found where it was, which others ask. */
static int function_unchanged(const Function *was)
{
    PyFunctionObject *now = function_now(was->reference);
    int guard = now == NULL || (now->func_code == was->code && now->func_defaults == was->defaults
        && same_items(was->keyword_defaults, now->func_kwdefaults));
    Py_XDECREF(now);
    return guard;
}

static int functions_stand(const CodeGuard *guard)
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

/* Python looks: versions are read before, so that what changes meanwhile is seen the next time. */
static PyObject *check_again(CodeGuard *guard)
{
    unsigned *versions = PyMem_Calloc((size_t)guard->class_count + 1, sizeof *versions);
    if (versions == NULL)
        return PyErr_NoMemory();
    for (Py_ssize_t i = 0; i < guard->class_count && all_live(guard); i++) {
        _PyType_Lookup(guard->classes[i], torch.calls);    /* any name: a class gets a version when it is asked */
        versions[i] = guard->classes[i]->tp_version_tag;
    }
    PyObject *verdict = PyObject_CallNoArgs(guard->lookup);
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
    if (all_live(guard) && classes_stand(guard) && functions_stand(guard))
        Py_RETURN_TRUE;
    return check_again(guard);
}

static int code_guard_traverse(PyObject *self, visitproc visit, void *arg)
{
    CodeGuard *guard = (CodeGuard *)self;
    Py_VISIT(guard->lookup);
    Py_VISIT(guard->dead);
    for (Py_ssize_t i = 0; i < guard->function_count; i++) {
        Py_VISIT(guard->functions[i].reference);
        Py_VISIT(guard->functions[i].code);
        Py_VISIT(guard->functions[i].defaults);
        Py_VISIT(guard->functions[i].keyword_defaults);
    }
    return 0;
}

static void code_guard_dealloc(PyObject *self)
{
    CodeGuard *guard = (CodeGuard *)self;
    PyObject_GC_UnTrack(self);
    for (Py_ssize_t i = 0; i < guard->function_count; i++) {
        Py_CLEAR(guard->functions[i].reference);
        Py_CLEAR(guard->functions[i].code);
        Py_CLEAR(guard->functions[i].defaults);
        Py_CLEAR(guard->functions[i].keyword_defaults);
    }
    Py_CLEAR(guard->lookup);
    Py_CLEAR(guard->dead);
    PyMem_Free(guard->classes);
    PyMem_Free(guard->versions);
    PyMem_Free(guard->functions);
    Py_TYPE(self)->tp_free(self);
}

static int take_function(Function *was, PyObject *given)
{
    PyFunctionObject *function = (PyFunctionObject *)given;
    PyObject *keyword_defaults = function->func_kwdefaults;
    was->reference = PyWeakref_NewRef(given, NULL);
    was->keyword_defaults = keyword_defaults == NULL ? NULL : PyDict_Copy(keyword_defaults);
    was->code = Py_NewRef(function->func_code);
    was->defaults = Py_XNewRef(function->func_defaults);
    return was->reference != NULL && (keyword_defaults == NULL || was->keyword_defaults != NULL);
}

static int take_functions(CodeGuard *guard, PyObject *functions)
{
    guard->functions = PyMem_Calloc((size_t)PyTuple_GET_SIZE(functions) + 1, sizeof *guard->functions);
    for (Py_ssize_t i = 0; guard->functions != NULL && i < PyTuple_GET_SIZE(functions); i++) {
        PyObject *function = PyTuple_GET_ITEM(functions, i);
        if (!PyFunction_Check(function)) {
            PyErr_Format(PyExc_TypeError, "%R is no function", function);
            return 0;
        }
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
        if (!PyType_Check(cls)) {
            PyErr_Format(PyExc_TypeError, "%R is no class", cls);
            return 0;
        }
        guard->classes[i] = (PyTypeObject *)cls;
    }
    guard->class_count = count;
    return 1;
}

static PyObject *code_guard_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"classes", "functions", "dead", "check", NULL};
    PyObject *classes, *functions, *dead, *lookup;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!O!O!O", names, &PyTuple_Type, &classes, &PyTuple_Type, &functions,
            &PyList_Type, &dead, &lookup))
        return NULL;
    CodeGuard *guard = (CodeGuard *)type->tp_alloc(type, 0);
    if (guard == NULL)
        return NULL;
    guard->vectorcall = code_guard_vectorcall;
    guard->lookup = Py_NewRef(lookup);
    guard->dead = Py_NewRef(dead);
    if (!take_classes(guard, classes) || !take_functions(guard, functions))
        Py_CLEAR(guard);
    return (PyObject *)guard;
}

/* Without tp_clear: what it holds can be cleared, and one that is half gone would answer. */
static PyTypeObject CodeGuardType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "shapedispatch.hit._native.CodeGuard",
    .tp_doc = "CodeGuard(classes, functions, dead, look)\n--\n\n"
              "Called, whether they are as they were when it was made; look() is asked where that can't be told.\n"
              "Classes are not held: something must stand in the list `dead` before one of them goes.",
    .tp_basicsize = sizeof(CodeGuard),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_new = code_guard_new,
    .tp_dealloc = code_guard_dealloc,
    .tp_traverse = code_guard_traverse,
    .tp_vectorcall_offset = offsetof(CodeGuard, vectorcall),
    .tp_call = PyVectorcall_Call,
};
