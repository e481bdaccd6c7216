/* Whether what a build was made of is as it was: classes and functions, and with them all of its guards as one. */

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

/* ------------------------------------------------------------------------------------------- all guards of one build */

enum { RECORD_BITS = 6, MOST_RECORDS = 1024, STATES_BEFORE_ANOTHER = 16 };

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *checks;                   /* a tuple: each asked without arguments */
    PyObject *others;                   /* asked with no local names: all guards but those on the instance */
    PyObject *all;                      /* all(args, kwargs); NULL where checks and others are all */
    PyObject *tree;                     /* what guards read of the instance; NULL where they read none */
    PyObject *new_state;                /* new_state() is a question: whether the dispatcher's state is as it is now */
    PyObject *state;                    /* that of all records, or NULL */
    PyObject *nothing;                  /* an empty dict */
    Py_ssize_t place;                   /* of the instance among the arguments */
    int strange;                        /* calls in another state than that, since it was made */
    unsigned states;                    /* how many were made */
    int count;                          /* of records: what the guards said of an instance */
    unsigned asked;                     /* how often all were asked */
    Record *records[1 << RECORD_BITS];
} GuardSet;

static Record **records_near(GuardSet *set, const PyObject *instance)
{
    return &set->records[(uint64_t)(uintptr_t)instance * 0x9E3779B97F4A7C15u >> (64 - RECORD_BITS)];
}

/* Where an instance is gone, another may have its address. */
static Record *find_record(GuardSet *set, const PyObject *instance)
{
    Record *record = *records_near(set, instance);
    while (record != NULL && (record->address != instance || is_gone(record->instance)))
        record = record->next;
    return record;
}

/* Those at this address, those that are gone with NULL, or all. */
static void drop_records(GuardSet *set, const PyObject *instance, int all)
{
    for (int i = 0; i < 1 << RECORD_BITS; i++)
        for (Record **place = &set->records[i]; *place != NULL;) {
            Record *record = *place;
            if (all || (instance == NULL ? is_gone(record->instance) : record->address == instance)) {
                *place = record->next;
                set->count--;
                free_record(record);
            } else
                place = &record->next;
        }
}

static void insert_record(GuardSet *set, Record *record)
{
    drop_records(set, record->address, 0);
    Record **place = records_near(set, record->address);
    record->next = *place;
    *place = record;
    set->count++;
}

/* Another state is taken for the usual one only after some calls in it. */
static int is_usual_state(GuardSet *set)
{
    int usual = set->state == NULL ? 0 : is_true(PyObject_CallNoArgs(set->state));
    if (usual < 1) {
        PyErr_Clear();
        if (set->state != NULL && ++set->strange < STATES_BEFORE_ANOTHER)
            return 0;
        drop_records(set, NULL, 1);
        set->strange = 0;
        set->states++;
        Py_XSETREF(set->state, PyObject_CallNoArgs(set->new_state));
        PyErr_Clear();
    }
    return set->state != NULL;
}

static int ask_all(GuardSet *set, PyObject *args, PyObject *kwargs)
{
    PyObject *call[] = {args, kwargs};
    set->asked++;
    return is_true(PyObject_Vectorcall(set->all, call, 2, NULL));
}

/* An instance that changes from call to call is recorded less and less often. */
static int is_to_wait(Record *before)
{
    if (before == NULL || before->wait == 0)
        return 0;
    if (before->idle > 0)
        return --before->idle > 0;
    before->idle = before->wait;        /* it was looked at, and did not hold */
    before->wait = before->wait < LONGEST_WAIT ? 2 * before->wait : LONGEST_WAIT;
    return 1;
}

/* The record is made before and must hold afterwards: then the guards were asked of what is in it. */
static int ask_and_record(GuardSet *set, PyObject *args, PyObject *kwargs, Record *before)
{
    if (is_to_wait(before))
        return ask_all(set, args, kwargs);
    if (before == NULL)
        drop_records(set, NULL, 0);
    int wait = before == NULL ? 0 : before->wait == 0 ? 1 : before->wait;
    PyObject *instance = PyTuple_GET_ITEM(args, set->place);
    Record *record = set->count < MOST_RECORDS || before != NULL ? record_of(instance, set->tree) : NULL;
    unsigned state = set->states;
    int verdict = ask_all(set, args, kwargs);
    if (record == NULL)
        return verdict;
    record->verdict = verdict;
    record->wait = wait;
    if (verdict >= 0 && state == set->states && (!record->complete || record_holds(record)))
        insert_record(set, record);
    else
        free_record(record);
    return verdict;
}

/* Guards that do not read the instance have held when it is looked at: a verdict on all is one on the instance. */
static int guards_hold(GuardSet *set, PyObject *args, PyObject *kwargs)
{
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(set->checks); i++) {
        int holds = is_true(PyObject_CallNoArgs(PyTuple_GET_ITEM(set->checks, i)));
        if (holds != 1)
            return holds;
    }
    int hold = is_true(PyObject_CallOneArg(set->others, set->nothing));
    if (hold != 1 || set->tree == NULL)
        return hold;
    if (!changes.relied_on || !PyTuple_CheckExact(args) || PyTuple_GET_SIZE(args) <= set->place
        || !PyType_SUPPORTS_WEAKREFS(Py_TYPE(PyTuple_GET_ITEM(args, set->place))) || !is_usual_state(set))
        return ask_all(set, args, kwargs);
    Record *record = find_record(set, PyTuple_GET_ITEM(args, set->place));
    if (record == NULL || record->idle > 0 || !record_holds(record))
        return ask_and_record(set, args, kwargs, record);
    record->wait = 0;
    return record->verdict;
}

static PyObject *guard_set_vectorcall(PyObject *self, PyObject *const *call, size_t flags, PyObject *names)
{
    GuardSet *set = (GuardSet *)self;
    if (PyVectorcall_NARGS(flags) != 2 || names != NULL)
        return PyErr_Format(PyExc_TypeError, "guards take the arguments of a call as a tuple and a dict");
    if (set->checks == NULL)            /* the collector has cleared it */
        Py_RETURN_FALSE;
    int hold = guards_hold(set, call[0], call[1]);
    return hold < 0 ? NULL : PyBool_FromLong(hold);
}

static int guard_set_traverse(PyObject *self, visitproc visit, void *arg)
{
    return visit_references(REFERENCES((GuardSet *)self, checks, nothing), visit, arg);
}

static int guard_set_clear(PyObject *self)
{
    drop_records((GuardSet *)self, NULL, 1);
    clear_references(REFERENCES((GuardSet *)self, checks, nothing));
    return 0;
}

static PyObject *guard_set_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"checks", "others", "all", "tree", "place", "new_state", NULL};
    PyObject *checks, *others, *all = NULL, *tree = NULL, *new_state = NULL;
    Py_ssize_t place = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!O|OOnO", names, &PyTuple_Type, &checks, &others, &all, &tree,
            &place, &new_state))
        return NULL;
    if (tree != NULL && (new_state == NULL || place < 0 || !is_tree(tree)))
        return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_TypeError, "this is no tree, or new_state is missing");
    GuardSet *set = (GuardSet *)type->tp_alloc(type, 0);
    if (set == NULL || (set->nothing = PyDict_New()) == NULL) {
        Py_XDECREF(set);
        return NULL;
    }
    set->vectorcall = guard_set_vectorcall;
    set->checks = Py_NewRef(checks);
    set->others = Py_NewRef(others);
    set->all = Py_XNewRef(all);
    set->tree = Py_XNewRef(tree);
    set->place = place;
    set->new_state = Py_XNewRef(new_state);
    return (PyObject *)set;
}

static PyMemberDef guard_set_members[] = {
    {"records", Py_T_INT, offsetof(GuardSet, count), Py_READONLY, "of how many instances a verdict is remembered"},
    {"asked", Py_T_UINT, offsetof(GuardSet, asked), Py_READONLY, "how often all guards were asked"},
    {"others", Py_T_OBJECT_EX, offsetof(GuardSet, others), Py_READONLY, "all guards but those on the instance"},
    {NULL, 0, 0, 0, NULL},
};

static PyTypeObject GuardSetType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "shapedispatch.hit._native.GuardSet",
    .tp_doc = "GuardSet(checks, others, all=None, tree=None, place=0, new_state=None)\n--\n\n"
              "Called as check(args, kwargs): whether all guards of a build hold. Those that read args[place] are\n"
              "asked again only where something of what the tree names has changed.",
    .tp_basicsize = sizeof(GuardSet),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_new = guard_set_new,
    .tp_dealloc = clear_and_free,
    .tp_traverse = guard_set_traverse,
    .tp_clear = guard_set_clear,
    .tp_vectorcall_offset = offsetof(GuardSet, vectorcall),
    .tp_call = PyVectorcall_Call,
    .tp_members = guard_set_members,
};
