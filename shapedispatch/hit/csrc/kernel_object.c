/* What the user of a kernel holds, `kernel` and `kernel[grid]`, and the path behind it as Python sees it. */

/* ---------------------------------------------------------------------------------------------- what the user calls */

/* A kernel as its user holds it; a class is made over it in Python, with what is asked when C cannot answer. */
typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    KernelFastPath *fast_path;          /* NULL: every call takes the Python path */
} KernelObject;

static PyObject *kernel_object_vectorcall(PyObject *self, PyObject *const *arguments, size_t flags, PyObject *names)
{
    return call_kernel(self, ((KernelObject *)self)->fast_path, torch.called, Py_None, arguments, flags, names);
}

/* `kernel[grid]` */
typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *kernel_object, *grid;
} GridBound;

static PyObject *grid_bound_vectorcall(PyObject *self, PyObject *const *arguments, size_t flags, PyObject *names)
{
    const GridBound *bound = (GridBound *)self;
    KernelFastPath *fast_path = ((KernelObject *)bound->kernel_object)->fast_path;
    return call_kernel(bound->kernel_object, fast_path, torch.launched, bound->grid, arguments, flags, names);
}

static int grid_bound_traverse(PyObject *self, visitproc visit, void *arg)
{
    return visit_references(REFERENCES((GridBound *)self, kernel_object, grid), visit, arg);
}

static void grid_bound_dealloc(PyObject *self)
{
    PyObject_GC_UnTrack(self);
    clear_references(REFERENCES((GridBound *)self, kernel_object, grid));
    Py_TYPE(self)->tp_free(self);
}

static PyMemberDef grid_bound_members[] = {
    {"kernel_object", Py_T_OBJECT_EX, offsetof(GridBound, kernel_object), Py_READONLY, "the kernel"},
    {"grid", Py_T_OBJECT_EX, offsetof(GridBound, grid), Py_READONLY, "what stands between the brackets"},
    {"__vectorcalloffset__", Py_T_PYSSIZET, offsetof(GridBound, vectorcall), Py_READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

/* Without tp_clear: the kernel can be cleared, and one without a kernel could not be called. */
static PyTypeObject GridBoundType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "shapedispatch.hit._native.GridBound",
    .tp_doc = "kernel[grid]: called with the kernel's arguments.",
    .tp_basicsize = sizeof(GridBound),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_dealloc = grid_bound_dealloc,
    .tp_traverse = grid_bound_traverse,
    .tp_call = PyVectorcall_Call,
    .tp_vectorcall_offset = offsetof(GridBound, vectorcall),
    .tp_members = grid_bound_members,
};

static PyObject *kernel_object_subscript(PyObject *self, PyObject *grid)
{
    const KernelFastPath *fast_path = ((KernelObject *)self)->fast_path;
    PyTypeObject *type = fast_path == NULL || fast_path->grid_bound == NULL ? &GridBoundType
                                                                            : (PyTypeObject *)fast_path->grid_bound;
    GridBound *made = (GridBound *)type->tp_alloc(type, 0);
    if (made == NULL)
        return NULL;
    made->vectorcall = grid_bound_vectorcall;
    made->kernel_object = Py_NewRef(self);
    made->grid = Py_NewRef(grid);
    return (PyObject *)made;
}

static PyObject *kernel_object_new(PyTypeObject *type, PyObject *Py_UNUSED(args), PyObject *Py_UNUSED(kwargs))
{
    KernelObject *kernel_object = (KernelObject *)type->tp_alloc(type, 0);
    if (kernel_object != NULL)
        kernel_object->vectorcall = kernel_object_vectorcall;
    return (PyObject *)kernel_object;
}

static int kernel_object_traverse(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT((PyObject *)((KernelObject *)self)->fast_path);
    return 0;
}

static int kernel_object_clear(PyObject *self)
{
    Py_CLEAR(((KernelObject *)self)->fast_path);
    return 0;
}

static void kernel_object_dealloc(PyObject *self)
{
    PyObject_GC_UnTrack(self);
    kernel_object_clear(self);
    Py_TYPE(self)->tp_free(self);
}

static PyMappingMethods kernel_object_as_mapping = {.mp_subscript = kernel_object_subscript};

PyDoc_STRVAR(use_fast_path_doc, "use_fast_path(path, /)\n--\n\nLet this path answer hits.");

static PyTypeObject KernelFastPathType;

static PyObject *kernel_object_use_fast_path(PyObject *self, PyObject *fast_path)
{
    if (!Py_IS_TYPE(fast_path, &KernelFastPathType))
        return PyErr_Format(PyExc_TypeError, "use_fast_path takes a kernel's path");
    Py_XSETREF(((KernelObject *)self)->fast_path, (KernelFastPath *)Py_NewRef(fast_path));
    Py_RETURN_NONE;
}

static PyMethodDef kernel_object_methods[] = {
    {"use_fast_path", kernel_object_use_fast_path, METH_O, use_fast_path_doc},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef kernel_object_members[] = {
    {"__vectorcalloffset__", Py_T_PYSSIZET, offsetof(KernelObject, vectorcall), Py_READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyTypeObject KernelObjectType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "shapedispatch.hit._native.KernelObject",
    .tp_doc = "A kernel whose hits are answered in C. A class over it has `_called(node, grid, *args, **kwargs)` for\n"
              "calls with the decorator's grid and `_launched`, the same, for those with their own.",
    .tp_basicsize = sizeof(KernelObject),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_new = kernel_object_new,
    .tp_dealloc = kernel_object_dealloc,
    .tp_traverse = kernel_object_traverse,
    .tp_clear = kernel_object_clear,
    .tp_call = PyVectorcall_Call,
    .tp_vectorcall_offset = offsetof(KernelObject, vectorcall),
    .tp_as_mapping = &kernel_object_as_mapping,
    .tp_methods = kernel_object_methods,
    .tp_members = kernel_object_members,
};

/* --------------------------------------------------------------------------------------- a kernel's path, as a type */

static PyObject *kernel_fast_path_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"hooks_to_check", "kernel", "globals_at", "run_type", "constant", "grid_bound", "refused",
        NULL};
    PyObject *hooks_to_check, *kernel, *globals_at, *run_type, *constant, *grid_bound, *refused;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!OUO!O!O!O", names, &PyTuple_Type, &hooks_to_check, &kernel,
            &globals_at, &PyType_Type, &run_type, &PyType_Type, &constant, &PyType_Type, &grid_bound, &refused))
        return NULL;
    Py_ssize_t launcher_at = field_at((PyTypeObject *)run_type, "launcher");
    if (launcher_at < 0)
        return NULL;
    if (!PyType_IsSubtype((PyTypeObject *)grid_bound, &GridBoundType))
        return PyErr_Format(PyExc_TypeError, "grid_bound is no GridBound");
    KernelFastPath *path = (KernelFastPath *)type->tp_alloc(type, 0);
    if (path == NULL)
        return NULL;
    path->base.sign = sign_tuple_and_dict;
    path->run_type = Py_NewRef(run_type);
    path->grid_bound = Py_NewRef(grid_bound);
    path->refused = Py_NewRef(refused);
    path->launcher_at = launcher_at;
    if (!start_cache(&path->base.cache) || !take_hooks(&path->hooks, hooks_to_check, kernel, globals_at, constant))
        Py_CLEAR(path);
    return (PyObject *)path;
}

static int kernel_fast_path_traverse(PyObject *self, visitproc visit, void *arg)
{
    KernelFastPath *path = (KernelFastPath *)self;
    Py_VISIT((PyObject *)path->schema);
    int stop = visit_hooks(&path->hooks, visit, arg);
    if (stop == 0)
        stop = visit_references(REFERENCES(path, refused, grid_bound), visit, arg);
    return stop != 0 ? stop : fast_path_traverse(self, visit, arg);
}

static int kernel_fast_path_clear(PyObject *self)
{
    KernelFastPath *path = (KernelFastPath *)self;
    Py_CLEAR(path->schema);
    clear_hooks(&path->hooks);
    clear_references(REFERENCES(path, refused, grid_bound));
    return fast_path_clear(self);
}

PyDoc_STRVAR(sign_doc, "sign(schema, /)\n--\n\n"
    "Sign calls by this KeySchema from now on, or judge none (None); calls that were signed by another are forgotten.");

static PyObject *kernel_fast_path_sign(PyObject *self, PyObject *schema)
{
    if (schema != Py_None && !Py_IS_TYPE(schema, &KeySchemaType))
        return PyErr_Format(PyExc_TypeError, "sign takes a KeySchema or None");
    KernelFastPath *path = (KernelFastPath *)self;
    Py_XSETREF(path->schema, schema == Py_None ? NULL : (KeySchema *)Py_NewRef(schema));
    remove_all_nodes(&path->base.cache);
    Py_RETURN_NONE;
}

static PyMethodDef kernel_fast_path_methods[] = {
    {"sign", kernel_fast_path_sign, METH_O, sign_doc},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject KernelFastPathType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "shapedispatch.hit._native.KernelFastPath",
    .tp_doc = "KernelFastPath(hooks_to_check, kernel, globals_at, run_type, constant, grid_bound, refused)\n--\n\n"
              "The hit path of one kernel. Hits are answered while each (object, attribute, kind) of `hooks_to_check`\n"
              "is empty and the globals are what they were; runs of `run_type` have a `launcher`. What is empty is f\n"
              "(false), n (None) or c (None, or a chain of hooks without one).",
    .tp_basicsize = sizeof(KernelFastPath),
    .tp_base = &FastPathType,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = kernel_fast_path_new,
    .tp_dealloc = fast_path_dealloc,
    .tp_traverse = kernel_fast_path_traverse,
    .tp_clear = kernel_fast_path_clear,
    .tp_methods = kernel_fast_path_methods,
};
