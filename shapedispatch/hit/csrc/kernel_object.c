/* What the user of a kernel holds, `kernel` and `kernel[grid]`, and the path behind it as Python sees it. */

/* -------------------------------------------------------------------------------------------- what the user calls */

/* A kernel as its user holds it; a class is made over it in Python, with what is asked when C cannot answer. */
typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    KernelFastPath *fast_path;                   /* NULL: every call takes the Python path */
} KernelObject;

/* By Python: front.<method>(node, grid, *arguments). */
static PyObject *by_method(PyObject *kernel_object, PyObject *method, CacheNode *node, PyObject *grid, const Call *call)
{
    Py_ssize_t count = call->by_position + name_count(call);
    PyObject **stack = PyMem_Malloc((size_t)(count + 3) * sizeof *stack);
    if (stack == NULL)
        return PyErr_NoMemory();
    stack[0] = kernel_object;
    stack[1] = node != NULL && node->slot == NULL ? (PyObject *)node : Py_None;
    stack[2] = call->sized != NULL ? call->sized : grid;
    memcpy(stack + 3, call->arguments, (size_t)count * sizeof *stack);
    PyObject *answer = PyObject_VectorcallMethod(method, stack, (size_t)call->by_position + 3, call->names);
    PyMem_Free(stack);
    return answer;
}

static PyObject *call_kernel(PyObject *self, PyObject *method, PyObject *grid, Call *call)
{
    CallSignature sig;
    call->sig = &sig;
    KernelFastPath *fast_path = ((KernelObject *)self)->fast_path;
    PyObject *answer = NULL;
    CacheNode *node = NULL;
    call->sized = NULL;
    Py_XINCREF(fast_path);                   /* what is asked may run code that gives the kernel another */
    if (fast_path != NULL && !fast_path->fast_path.off && no_hooks_now(fast_path) && fast_path->schema != NULL) {
        KeySchema *schema = (KeySchema *)Py_NewRef(fast_path->schema);
        if (sign_kernel_call(call, schema)) {
            node = node_of(&fast_path->fast_path, call->sig);
            answer = hit(fast_path, schema, node, grid, call);
        }
        Py_DECREF(schema);
    }
    Py_XDECREF(fast_path);
    if (answer == NULL && !PyErr_Occurred())
        answer = by_method(self, method, node, grid, call);
    Py_XDECREF(node);
    Py_XDECREF(call->sized);
    return answer;
}

static PyObject *kernel_object_vectorcall(PyObject *self, PyObject *const *arguments, size_t flags, PyObject *names)
{
    Call call;
    call.arguments = arguments;
    call.by_position = PyVectorcall_NARGS(flags);
    call.names = names;
    return call_kernel(self, torch.called, Py_None, &call);
}

/* `kernel[grid]` */
typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *kernel_object, *grid;
} GridBound;

static PyObject *grid_bound_vectorcall(PyObject *self, PyObject *const *arguments, size_t flags, PyObject *names)
{
    Call call;
    call.arguments = arguments;
    call.by_position = PyVectorcall_NARGS(flags);
    call.names = names;
    return call_kernel(((GridBound *)self)->kernel_object, torch.launched, ((GridBound *)self)->grid, &call);
}

static PyTypeObject GridBoundType;

static PyObject *kernel_object_subscript(PyObject *self, PyObject *grid)
{
    KernelFastPath *fast_path = ((KernelObject *)self)->fast_path;
    PyTypeObject *type = fast_path == NULL || fast_path->grid_bound == NULL ? &GridBoundType : fast_path->grid_bound;
    GridBound *made = (GridBound *)type->tp_alloc(type, 0);
    if (made == NULL)
        return NULL;
    made->vectorcall = grid_bound_vectorcall;
    made->kernel_object = Py_NewRef(self);
    made->grid = Py_NewRef(grid);
    return (PyObject *)made;
}

static int grid_bound_traverse(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(((GridBound *)self)->kernel_object);
    Py_VISIT(((GridBound *)self)->grid);
    return 0;
}

static int grid_bound_clear(PyObject *self)
{
    Py_CLEAR(((GridBound *)self)->kernel_object);
    Py_CLEAR(((GridBound *)self)->grid);
    return 0;
}

static void grid_bound_dealloc(PyObject *self)
{
    PyObject_GC_UnTrack(self);
    grid_bound_clear(self);
    Py_TYPE(self)->tp_free(self);
}

static PyMemberDef grid_bound_members[] = {
    {"kernel_object", T_OBJECT_EX, offsetof(GridBound, kernel_object), READONLY, "the kernel"},
    {"grid", T_OBJECT_EX, offsetof(GridBound, grid), READONLY, "what stands between the brackets"},
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(GridBound, vectorcall), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyTypeObject GridBoundType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "shapedispatch.hit._native.GridBound",
    .tp_doc = "kernel[grid]: called with the kernel's arguments.",
    .tp_basicsize = sizeof(GridBound),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_dealloc = grid_bound_dealloc,
    .tp_traverse = grid_bound_traverse,
    .tp_clear = grid_bound_clear,
    .tp_call = PyVectorcall_Call,
    .tp_vectorcall_offset = offsetof(GridBound, vectorcall),
    .tp_members = grid_bound_members,
};

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
    if (Py_TYPE(fast_path) != &KernelFastPathType)
        return PyErr_Format(PyExc_TypeError, "use_fast_path takes a kernel's path");
    Py_XSETREF(((KernelObject *)self)->fast_path, (KernelFastPath *)Py_NewRef(fast_path));
    Py_RETURN_NONE;
}

static PyMethodDef kernel_object_methods[] = {
    {"use_fast_path", kernel_object_use_fast_path, METH_O, use_fast_path_doc},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef kernel_object_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(KernelObject, vectorcall), READONLY, NULL},
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

/* -------------------------------------------------------------------------------------- a kernel's path, as a type */

static int take_watches(KernelFastPath *fast_path, PyObject *hooks_to_check)
{
    if (PyTuple_GET_SIZE(hooks_to_check) > MOST_WATCHES) {
        PyErr_Format(PyExc_ValueError, "more than %d attributes are to be watched", MOST_WATCHES);
        return 0;
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(hooks_to_check); i++) {
        PyObject *object, *name;
        int kind;
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(hooks_to_check, i), "OUC", &object, &name, &kind))
            return 0;
        take_watch(&fast_path->watches[fast_path->watch_count++], object, name, kind);
    }
    return 1;
}

static PyObject *kernel_fast_path_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"hooks_to_check", "kernel", "globals_at", "run_type", "constant", "grid_bound", "refused", NULL};
    PyObject *hooks_to_check, *kernel, *globals_at, *run_type, *constant, *grid_bound, *refused;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!OUO!O!O!O", names, &PyTuple_Type, &hooks_to_check, &kernel, &globals_at,
            &PyType_Type, &run_type, &PyType_Type, &constant, &PyType_Type, &grid_bound, &refused))
        return NULL;
    Py_ssize_t launcher_at = field_at((PyTypeObject *)run_type, "launcher");
    if (launcher_at < 0)
        return NULL;
    if (!PyType_IsSubtype((PyTypeObject *)grid_bound, &GridBoundType))
        return PyErr_Format(PyExc_TypeError, "grid_bound is no GridBound");
    KernelFastPath *fast_path = (KernelFastPath *)empty_fast_path(type);
    if (fast_path == NULL)
        return NULL;
    fast_path->fast_path.packs = sign_for_kernel;
    take_watch(&fast_path->globals_at, kernel, globals_at, NONE_ALONE);
    fast_path->run_type = (PyTypeObject *)Py_NewRef(run_type);
    fast_path->constant = (PyTypeObject *)Py_NewRef(constant);
    fast_path->grid_bound = (PyTypeObject *)Py_NewRef(grid_bound);
    fast_path->refused = Py_NewRef(refused);
    fast_path->launcher_at = launcher_at;
    if (!take_watches(fast_path, hooks_to_check))
        Py_CLEAR(fast_path);
    return (PyObject *)fast_path;
}

static int kernel_fast_path_traverse(PyObject *self, visitproc visit, void *arg)
{
    KernelFastPath *fast_path = (KernelFastPath *)self;
    Py_VISIT((PyObject *)fast_path->schema);
    int stop = visit_watch(&fast_path->globals_at, visit, arg);
    for (int i = 0; stop == 0 && i < fast_path->watch_count; i++)
        stop = visit_watch(&fast_path->watches[i], visit, arg);
    if (stop != 0)
        return stop;
    Py_VISIT(fast_path->globals);
    Py_VISIT((PyObject *)fast_path->run_type);
    Py_VISIT((PyObject *)fast_path->constant);
    Py_VISIT((PyObject *)fast_path->grid_bound);
    Py_VISIT(fast_path->refused);
    return fast_path_traverse(self, visit, arg);
}

static int kernel_fast_path_clear(PyObject *self)
{
    KernelFastPath *fast_path = (KernelFastPath *)self;
    Py_CLEAR(fast_path->schema);
    for (int i = 0; i < fast_path->watch_count; i++)
        clear_watch(&fast_path->watches[i]);
    fast_path->watch_count = 0;
    fast_path->no_hooks_since = NEVER;
    clear_watch(&fast_path->globals_at);
    Py_CLEAR(fast_path->globals);
    Py_CLEAR(fast_path->run_type);
    Py_CLEAR(fast_path->constant);
    Py_CLEAR(fast_path->grid_bound);
    Py_CLEAR(fast_path->refused);
    return fast_path_clear(self);
}

static void kernel_fast_path_dealloc(PyObject *self)
{
    PyObject_GC_UnTrack(self);
    kernel_fast_path_clear(self);
    PyMem_Free(((FastPath *)self)->places);
    Py_TYPE(self)->tp_free(self);
}

PyDoc_STRVAR(sign_doc, "sign(signature, /)\n--\n\n"
    "CallSignature calls by this signature from now on, or judge none (None); calls that were in the cache by another are forgotten.");

static PyObject *kernel_fast_path_sign(PyObject *self, PyObject *schema)
{
    if (schema != Py_None && Py_TYPE(schema) != &KeySchemaType)
        return PyErr_Format(PyExc_TypeError, "sign takes a KeySchema or None");
    KernelFastPath *fast_path = (KernelFastPath *)self;
    Py_XSETREF(fast_path->schema, schema == Py_None ? NULL : (KeySchema *)Py_NewRef(schema));
    remove_all_nodes(&fast_path->fast_path);
    Py_RETURN_NONE;
}

static PyMethodDef kernel_fast_path_methods[] = {
    {"sign", kernel_fast_path_sign, METH_O, sign_doc},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject KernelFastPathType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "shapedispatch.hit._native.KernelFastPath",
    .tp_doc = "KernelFastPath(silent, kernel, globals_at, run_type, constant, grid_bound, refused)\n--\n\n"
              "The hit path of one kernel. Hits are answered while each (object, attribute, kind) of `silent` is\n"
              "empty and the globals are what they were; runs of `run_type` have a `launcher`. What is empty is f\n"
              "(false), n (None) or c (None, or a chain of hooks without one).",
    .tp_basicsize = sizeof(KernelFastPath),
    .tp_base = &FastPathType,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = kernel_fast_path_new,
    .tp_dealloc = kernel_fast_path_dealloc,
    .tp_traverse = kernel_fast_path_traverse,
    .tp_clear = kernel_fast_path_clear,
    .tp_methods = kernel_fast_path_methods,
};
