/* What the user of a kernel holds, `kernel` and `kernel[grid]`, and the road behind it as Python sees it. */

/* -------------------------------------------------------------------------------------------- what the user calls */

/* A kernel as its user holds it; a class is made over it in Python, with what is asked when C cannot answer. */
typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    KernelRoad *road;                   /* NULL: every call takes the Python road */
} Front;

/* By Python: front.<method>(link, grid, *arguments). */
static PyObject *by_method(PyObject *front, PyObject *method, Link *link, PyObject *grid, const Call *call)
{
    Py_ssize_t count = call->by_position + name_count(call);
    PyObject **stack = PyMem_Malloc((size_t)(count + 3) * sizeof *stack);
    if (stack == NULL)
        return PyErr_NoMemory();
    stack[0] = front;
    stack[1] = link != NULL && link->slot == NULL ? (PyObject *)link : Py_None;
    stack[2] = call->sized != NULL ? call->sized : grid;
    memcpy(stack + 3, call->arguments, (size_t)count * sizeof *stack);
    PyObject *answer = PyObject_VectorcallMethod(method, stack, (size_t)call->by_position + 3, call->names);
    PyMem_Free(stack);
    return answer;
}

static PyObject *call_kernel(PyObject *self, PyObject *method, PyObject *grid, Call *call)
{
    Pack pack;
    call->pack = &pack;
    KernelRoad *road = ((Front *)self)->road;
    PyObject *answer = NULL;
    Link *link = NULL;
    call->sized = NULL;
    Py_XINCREF(road);                   /* what is asked may run code that gives the kernel another */
    if (road != NULL && !road->road.off && is_calm(road) && road->signature != NULL) {
        Signature *signature = (Signature *)Py_NewRef(road->signature);
        if (pack_kernel_call(call, signature)) {
            link = link_of(&road->road, call->pack);
            answer = hit(road, signature, link, grid, call);
        }
        Py_DECREF(signature);
    }
    Py_XDECREF(road);
    if (answer == NULL && !PyErr_Occurred())
        answer = by_method(self, method, link, grid, call);
    Py_XDECREF(link);
    Py_XDECREF(call->sized);
    return answer;
}

static PyObject *front_vectorcall(PyObject *self, PyObject *const *arguments, size_t flags, PyObject *names)
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
    PyObject *front, *grid;
} AtGrid;

static PyObject *at_grid_vectorcall(PyObject *self, PyObject *const *arguments, size_t flags, PyObject *names)
{
    Call call;
    call.arguments = arguments;
    call.by_position = PyVectorcall_NARGS(flags);
    call.names = names;
    return call_kernel(((AtGrid *)self)->front, torch.launched, ((AtGrid *)self)->grid, &call);
}

static PyTypeObject AtGridType;

static PyObject *front_subscript(PyObject *self, PyObject *grid)
{
    KernelRoad *road = ((Front *)self)->road;
    PyTypeObject *type = road == NULL || road->at_grid == NULL ? &AtGridType : road->at_grid;
    AtGrid *made = (AtGrid *)type->tp_alloc(type, 0);
    if (made == NULL)
        return NULL;
    made->vectorcall = at_grid_vectorcall;
    made->front = Py_NewRef(self);
    made->grid = Py_NewRef(grid);
    return (PyObject *)made;
}

static int at_grid_traverse(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(((AtGrid *)self)->front);
    Py_VISIT(((AtGrid *)self)->grid);
    return 0;
}

static int at_grid_clear(PyObject *self)
{
    Py_CLEAR(((AtGrid *)self)->front);
    Py_CLEAR(((AtGrid *)self)->grid);
    return 0;
}

static void at_grid_dealloc(PyObject *self)
{
    PyObject_GC_UnTrack(self);
    at_grid_clear(self);
    Py_TYPE(self)->tp_free(self);
}

static PyMemberDef at_grid_members[] = {
    {"front", T_OBJECT_EX, offsetof(AtGrid, front), READONLY, "the kernel"},
    {"grid", T_OBJECT_EX, offsetof(AtGrid, grid), READONLY, "what stands between the brackets"},
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(AtGrid, vectorcall), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyTypeObject AtGridType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "shapedispatch.hit._native.AtGrid",
    .tp_doc = "kernel[grid]: called with the kernel's arguments.",
    .tp_basicsize = sizeof(AtGrid),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_dealloc = at_grid_dealloc,
    .tp_traverse = at_grid_traverse,
    .tp_clear = at_grid_clear,
    .tp_call = PyVectorcall_Call,
    .tp_vectorcall_offset = offsetof(AtGrid, vectorcall),
    .tp_members = at_grid_members,
};

static PyObject *front_new(PyTypeObject *type, PyObject *Py_UNUSED(args), PyObject *Py_UNUSED(kwargs))
{
    Front *front = (Front *)type->tp_alloc(type, 0);
    if (front != NULL)
        front->vectorcall = front_vectorcall;
    return (PyObject *)front;
}

static int front_traverse(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT((PyObject *)((Front *)self)->road);
    return 0;
}

static int front_clear(PyObject *self)
{
    Py_CLEAR(((Front *)self)->road);
    return 0;
}

static void front_dealloc(PyObject *self)
{
    PyObject_GC_UnTrack(self);
    front_clear(self);
    Py_TYPE(self)->tp_free(self);
}

static PyMappingMethods front_as_mapping = {.mp_subscript = front_subscript};

PyDoc_STRVAR(take_road_doc, "take_road(road, /)\n--\n\nLet this road answer hits.");

static PyTypeObject KernelRoadType;

static PyObject *front_take_road(PyObject *self, PyObject *road)
{
    if (Py_TYPE(road) != &KernelRoadType)
        return PyErr_Format(PyExc_TypeError, "take_road takes a kernel's road");
    Py_XSETREF(((Front *)self)->road, (KernelRoad *)Py_NewRef(road));
    Py_RETURN_NONE;
}

static PyMethodDef front_methods[] = {
    {"take_road", front_take_road, METH_O, take_road_doc},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef front_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Front, vectorcall), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyTypeObject FrontType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "shapedispatch.hit._native.Front",
    .tp_doc = "A kernel whose hits are answered in C. A class over it has `_called(link, grid, *args, **kwargs)` for\n"
              "calls with the decorator's grid and `_launched`, the same, for those with their own.",
    .tp_basicsize = sizeof(Front),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_new = front_new,
    .tp_dealloc = front_dealloc,
    .tp_traverse = front_traverse,
    .tp_clear = front_clear,
    .tp_call = PyVectorcall_Call,
    .tp_vectorcall_offset = offsetof(Front, vectorcall),
    .tp_as_mapping = &front_as_mapping,
    .tp_methods = front_methods,
    .tp_members = front_members,
};

/* -------------------------------------------------------------------------------------- a kernel's road, as a type */

static int take_watches(KernelRoad *road, PyObject *silent)
{
    if (PyTuple_GET_SIZE(silent) > MOST_WATCHES) {
        PyErr_Format(PyExc_ValueError, "more than %d attributes are to be watched", MOST_WATCHES);
        return 0;
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(silent); i++) {
        PyObject *object, *name;
        int kind;
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(silent, i), "OUC", &object, &name, &kind))
            return 0;
        take_watch(&road->watches[road->watch_count++], object, name, kind);
    }
    return 1;
}

static PyObject *kernel_road_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"silent", "kernel", "globals_at", "run_type", "constant", "at_grid", "refused", NULL};
    PyObject *silent, *kernel, *globals_at, *run_type, *constant, *at_grid, *refused;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!OUO!O!O!O", names, &PyTuple_Type, &silent, &kernel, &globals_at,
            &PyType_Type, &run_type, &PyType_Type, &constant, &PyType_Type, &at_grid, &refused))
        return NULL;
    Py_ssize_t plan_at = field_at((PyTypeObject *)run_type, "plan");
    if (plan_at < 0)
        return NULL;
    if (!PyType_IsSubtype((PyTypeObject *)at_grid, &AtGridType))
        return PyErr_Format(PyExc_TypeError, "at_grid is no AtGrid");
    KernelRoad *road = (KernelRoad *)empty_road(type);
    if (road == NULL)
        return NULL;
    road->road.packs = pack_for_kernel;
    take_watch(&road->globals_at, kernel, globals_at, NONE_ALONE);
    road->run_type = (PyTypeObject *)Py_NewRef(run_type);
    road->constant = (PyTypeObject *)Py_NewRef(constant);
    road->at_grid = (PyTypeObject *)Py_NewRef(at_grid);
    road->refused = Py_NewRef(refused);
    road->plan_at = plan_at;
    if (!take_watches(road, silent))
        Py_CLEAR(road);
    return (PyObject *)road;
}

static int kernel_road_traverse(PyObject *self, visitproc visit, void *arg)
{
    KernelRoad *road = (KernelRoad *)self;
    Py_VISIT((PyObject *)road->signature);
    int stop = visit_watch(&road->globals_at, visit, arg);
    for (int i = 0; stop == 0 && i < road->watch_count; i++)
        stop = visit_watch(&road->watches[i], visit, arg);
    if (stop != 0)
        return stop;
    Py_VISIT(road->globals);
    Py_VISIT((PyObject *)road->run_type);
    Py_VISIT((PyObject *)road->constant);
    Py_VISIT((PyObject *)road->at_grid);
    Py_VISIT(road->refused);
    return road_traverse(self, visit, arg);
}

static int kernel_road_clear(PyObject *self)
{
    KernelRoad *road = (KernelRoad *)self;
    Py_CLEAR(road->signature);
    for (int i = 0; i < road->watch_count; i++)
        clear_watch(&road->watches[i]);
    road->watch_count = 0;
    road->calm_since = NEVER;
    clear_watch(&road->globals_at);
    Py_CLEAR(road->globals);
    Py_CLEAR(road->run_type);
    Py_CLEAR(road->constant);
    Py_CLEAR(road->at_grid);
    Py_CLEAR(road->refused);
    return road_clear(self);
}

static void kernel_road_dealloc(PyObject *self)
{
    PyObject_GC_UnTrack(self);
    kernel_road_clear(self);
    PyMem_Free(((Road *)self)->places);
    Py_TYPE(self)->tp_free(self);
}

PyDoc_STRVAR(sign_doc, "sign(signature, /)\n--\n\n"
    "Pack calls by this signature from now on, or judge none (None); calls that were linked by another are forgotten.");

static PyObject *kernel_road_sign(PyObject *self, PyObject *signature)
{
    if (signature != Py_None && Py_TYPE(signature) != &SignatureType)
        return PyErr_Format(PyExc_TypeError, "sign takes a Signature or None");
    KernelRoad *road = (KernelRoad *)self;
    Py_XSETREF(road->signature, signature == Py_None ? NULL : (Signature *)Py_NewRef(signature));
    unlink_all(&road->road);
    Py_RETURN_NONE;
}

static PyMethodDef kernel_road_methods[] = {
    {"sign", kernel_road_sign, METH_O, sign_doc},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject KernelRoadType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "shapedispatch.hit._native.KernelRoad",
    .tp_doc = "KernelRoad(silent, kernel, globals_at, run_type, constant, at_grid, refused)\n--\n\n"
              "The hit path of one kernel. Hits are answered while each (object, attribute, kind) of `silent` is\n"
              "empty and the globals are what they were; runs of `run_type` have a `plan`. What is empty is f\n"
              "(false), n (None) or c (None, or a chain of hooks without one).",
    .tp_basicsize = sizeof(KernelRoad),
    .tp_base = &RoadType,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = kernel_road_new,
    .tp_dealloc = kernel_road_dealloc,
    .tp_traverse = kernel_road_traverse,
    .tp_clear = kernel_road_clear,
    .tp_methods = kernel_road_methods,
};
