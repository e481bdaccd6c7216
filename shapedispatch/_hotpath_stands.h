/* Whether classes, functions and closures are as they were: asked at each hit of a build that was made of their code. */

/* A function as it was. Keyword defaults may change in place, so they are a copy. */
typedef struct {
    PyFunctionObject *function;
    PyObject *code, *defaults, *keyword_defaults;
} Function;

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *look;                     /* asked where something may have changed: whether it stands all the same */
    PyObject *classes;                  /* a tuple of types */
    unsigned *versions;                 /* theirs when they were looked at last; 0: not yet, or none that tells */
    PyObject *cells, *contents;         /* tuples of closure cells and of what was in them */
    Py_ssize_t function_count;
    Function *functions;
} Stands;

static int classes_stand(const Stands *stands)
{
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(stands->classes); i++) {
        unsigned version = ((PyTypeObject *)PyTuple_GET_ITEM(stands->classes, i))->tp_version_tag;
        if (version == 0 || version != stands->versions[i])
            return 0;
    }
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

static int function_stands(const Function *was)
{
    const PyFunctionObject *now = was->function;
    return now->func_code == was->code && now->func_defaults == was->defaults
        && same_items(was->keyword_defaults, now->func_kwdefaults);
}

static int code_stands(const Stands *stands)
{
    for (Py_ssize_t i = 0; i < stands->function_count; i++)
        if (!function_stands(&stands->functions[i]))
            return 0;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(stands->cells); i++)
        if (PyCell_GET(PyTuple_GET_ITEM(stands->cells, i)) != PyTuple_GET_ITEM(stands->contents, i))
            return 0;
    return 1;
}

/* Python looks: versions are read before, so that what changes meanwhile is seen the next time. */
static PyObject *look_again(Stands *stands)
{
    Py_ssize_t count = PyTuple_GET_SIZE(stands->classes);
    unsigned *versions = PyMem_Calloc((size_t)count + 1, sizeof *versions);
    if (versions == NULL)
        return PyErr_NoMemory();
    for (Py_ssize_t i = 0; i < count; i++) {
        PyTypeObject *type = (PyTypeObject *)PyTuple_GET_ITEM(stands->classes, i);
        _PyType_Lookup(type, torch.calls);              /* any name: a class gets a version when it is asked */
        versions[i] = type->tp_version_tag;
    }
    PyObject *verdict = PyObject_CallNoArgs(stands->look);
    if (verdict == Py_True)
        memcpy(stands->versions, versions, (size_t)count * sizeof *versions);
    PyMem_Free(versions);
    return verdict;
}

static PyObject *stands_vectorcall(PyObject *self, PyObject *const *Py_UNUSED(args), size_t flags, PyObject *names)
{
    Stands *stands = (Stands *)self;
    if (PyVectorcall_NARGS(flags) != 0 || names != NULL)
        return PyErr_Format(PyExc_TypeError, "takes no arguments");
    if (classes_stand(stands) && code_stands(stands))
        Py_RETURN_TRUE;
    return look_again(stands);
}

static int stands_traverse(PyObject *self, visitproc visit, void *arg)
{
    Stands *stands = (Stands *)self;
    Py_VISIT(stands->look);
    Py_VISIT(stands->classes);
    Py_VISIT(stands->cells);
    Py_VISIT(stands->contents);
    for (Py_ssize_t i = 0; i < stands->function_count; i++) {
        Py_VISIT((PyObject *)stands->functions[i].function);
        Py_VISIT(stands->functions[i].code);
        Py_VISIT(stands->functions[i].defaults);
        Py_VISIT(stands->functions[i].keyword_defaults);
    }
    return 0;
}

static void stands_dealloc(PyObject *self)
{
    Stands *stands = (Stands *)self;
    PyObject_GC_UnTrack(self);
    for (Py_ssize_t i = 0; i < stands->function_count; i++) {
        Py_CLEAR(stands->functions[i].function);
        Py_CLEAR(stands->functions[i].code);
        Py_CLEAR(stands->functions[i].defaults);
        Py_CLEAR(stands->functions[i].keyword_defaults);
    }
    Py_CLEAR(stands->look);
    Py_CLEAR(stands->classes);
    Py_CLEAR(stands->cells);
    Py_CLEAR(stands->contents);
    PyMem_Free(stands->versions);
    PyMem_Free(stands->functions);
    Py_TYPE(self)->tp_free(self);
}

static int take_function(Function *was, PyObject *given)
{
    PyFunctionObject *function = (PyFunctionObject *)given;
    was->keyword_defaults = function->func_kwdefaults == NULL ? NULL : PyDict_Copy(function->func_kwdefaults);
    if (function->func_kwdefaults != NULL && was->keyword_defaults == NULL)
        return 0;
    was->function = (PyFunctionObject *)Py_NewRef(given);
    was->code = Py_NewRef(function->func_code);
    was->defaults = Py_XNewRef(function->func_defaults);
    return 1;
}

/* Functions are counted one by one, so that what was taken is given back where one is none. */
static int take_functions(Stands *stands, PyObject *functions)
{
    stands->functions = PyMem_Calloc((size_t)PyTuple_GET_SIZE(functions) + 1, sizeof *stands->functions);
    for (Py_ssize_t i = 0; stands->functions != NULL && i < PyTuple_GET_SIZE(functions); i++) {
        PyObject *function = PyTuple_GET_ITEM(functions, i);
        if (!PyFunction_Check(function)) {
            PyErr_Format(PyExc_TypeError, "%R is no function", function);
            return 0;
        }
        if (!take_function(&stands->functions[i], function))
            return 0;
        stands->function_count++;
    }
    return stands->functions != NULL || PyErr_NoMemory() != NULL;
}

static int take_cells(Stands *stands, PyObject *cells)
{
    Py_ssize_t count = PyTuple_GET_SIZE(cells);
    stands->cells = Py_NewRef(cells);
    stands->contents = PyTuple_New(count);
    for (Py_ssize_t i = 0; stands->contents != NULL && i < count; i++) {
        PyObject *cell = PyTuple_GET_ITEM(cells, i);
        if (!PyCell_Check(cell) || PyCell_GET(cell) == NULL) {
            PyErr_Format(PyExc_TypeError, "%R is no cell with something in it", cell);
            return 0;
        }
        PyTuple_SET_ITEM(stands->contents, i, Py_NewRef(PyCell_GET(cell)));
    }
    return stands->contents != NULL;
}

static int take_classes(Stands *stands, PyObject *classes)
{
    Py_ssize_t count = PyTuple_GET_SIZE(classes);
    for (Py_ssize_t i = 0; i < count; i++)
        if (!PyType_Check(PyTuple_GET_ITEM(classes, i))) {
            PyErr_Format(PyExc_TypeError, "%R is no class", PyTuple_GET_ITEM(classes, i));
            return 0;
        }
    stands->classes = Py_NewRef(classes);
    stands->versions = PyMem_Calloc((size_t)count + 1, sizeof *stands->versions);
    return stands->versions != NULL || PyErr_NoMemory() != NULL;
}

static PyObject *stands_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"classes", "functions", "cells", "look", NULL};
    PyObject *classes, *functions, *cells, *look;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!O!O!O", names, &PyTuple_Type, &classes, &PyTuple_Type, &functions,
            &PyTuple_Type, &cells, &look))
        return NULL;
    Stands *stands = (Stands *)type->tp_alloc(type, 0);
    if (stands == NULL)
        return NULL;
    stands->vectorcall = stands_vectorcall;
    stands->look = Py_NewRef(look);
    if (!take_classes(stands, classes) || !take_cells(stands, cells) || !take_functions(stands, functions))
        Py_CLEAR(stands);
    return (PyObject *)stands;
}

/* Without tp_clear: what it holds can be cleared, and one that is half gone would answer. */
static PyTypeObject StandsType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "shapedispatch._hotpath.Stands",
    .tp_doc = "Stands(classes, functions, cells, look)\n--\n\n"
              "Called, whether they are as they were when it was made; look() is asked where that can't be told.",
    .tp_basicsize = sizeof(Stands),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_new = stands_new,
    .tp_dealloc = stands_dealloc,
    .tp_traverse = stands_traverse,
    .tp_vectorcall_offset = offsetof(Stands, vectorcall),
    .tp_call = PyVectorcall_Call,
};
