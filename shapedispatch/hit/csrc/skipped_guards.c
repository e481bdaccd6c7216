/*
 * Guards that most hits need not ask: those on globals, and those of what is right in every state.
 *
 * The former hold while each name that they read leads to what it led to when they held. Names are looked up anew at
 * each hit, from the globals on: a dict of globals changes all the time, by names that no guard reads. Nothing but
 * constants and code is held: each value is compared with what stands there now, as the guards compare it, by address
 * and type.
 */

/* --------------------------------------------------------------------------------------------------- what names led to */

typedef struct {
    int parent;                         /* the name before this one whose value this is a name in; -1: the globals */
    PyObject *key, *value;              /* the latter is not held */
    PyTypeObject *type;                 /* the value's */
    PyObject *held;                     /* a constant, which is the value; a function's code; or NULL */
} SeenName;

static void free_names(Array *names)
{
    SeenName *seen = names->items;
    for (int i = 0; i < names->count; i++) {
        Py_DECREF(seen[i].key);
        Py_XDECREF(seen[i].held);
    }
    PyMem_Free(seen);
    *names = (Array){NULL, 0, 0};
}

/* The dict that names in a value are looked up in, borrowed; NULL for what has other rules. */
static PyObject *names_in(PyObject *value)
{
    if (PyDict_CheckExact(value))
        return value;
    return Py_IS_TYPE(value, &PyModule_Type) ? PyModule_GetDict(value) : NULL;
}

static int name_unchanged(const SeenName *all, const SeenName *seen, PyObject *globals)
{
    PyObject *names = seen->parent < 0 ? globals : names_in(all[seen->parent].value);
    PyObject *now = names == NULL ? NULL : PyDict_GetItemWithError(names, seen->key);
    return now != NULL && now == seen->value && Py_TYPE(now) == seen->type
        && (!PyFunction_Check(now) || PyFunction_GET_CODE(now) == seen->held);
}

/* Each stands behind the one that leads to it, whose value is there if that was found unchanged. */
static int names_unchanged(const Array *names, PyObject *globals)
{
    const SeenName *all = names->items;
    for (int i = 0; i < names->count; i++)
        if (!name_unchanged(all, &all[i], globals)) {
            PyErr_Clear();
            return 0;
        }
    return 1;
}

/* -------------------------------------------------------------------------------------------------------------- reading */

/* Each of these returns whether all that is read can be compared later. None runs Python code. */
static int read_names(Array *names, PyObject *tree, int parent, PyObject *dict, Py_UCS4 by);

/* What can be read of a value without names in it: which it is, and all of a constant. */
static int read_whole(SeenName *seen, PyObject *tree)
{
    if (is_constant(seen->value) && !PyCFunction_CheckExact(seen->value)) {
        seen->held = Py_NewRef(seen->value);
        return is_leaf(tree);
    }
    if (PyFunction_Check(seen->value)) {
        seen->held = Py_NewRef(PyFunction_GET_CODE(seen->value));
        FOR_EACH_BRANCH(i, tree)
            if (way(tree, i) != CODE_OF || !is_leaf(part(tree, i, 2)))
                return 0;
        return !is_read(tree);
    }
    return is_leaf(tree) && !is_read(tree);
}

static int read_name(Array *names, PyObject *tree, PyObject *key, int parent, PyObject *dict)
{
    PyObject *value = PyUnicode_CheckExact(key) ? PyDict_GetItemWithError(dict, key) : NULL;
    SeenName *seen = value == NULL ? NULL : append(names, sizeof *seen);
    int at = names->count - 1;
    if (seen == NULL)
        return 0;
    *seen = (SeenName){parent, Py_NewRef(key), value, Py_TYPE(value), NULL};
    PyUnicode_InternInPlace(&seen->key);
    PyObject *inner = is_leaf(tree) ? NULL : names_in(value);
    if (inner == NULL)
        return read_whole(seen, tree);
    return !is_read(tree) && read_names(names, tree, at, inner, inner == value ? ITEM : ATTRIBUTE);
}

/* A module's own attributes are what its dict holds, but for what its type decides about. */
static int read_names(Array *names, PyObject *tree, int parent, PyObject *dict, Py_UCS4 by)
{
    FOR_EACH_BRANCH(i, tree) {
        PyObject *key = part(tree, i, 1);
        if (way(tree, i) != by || (by == ATTRIBUTE && class_attribute(&PyModule_Type, key) != NULL)
            || !read_name(names, part(tree, i, 2), key, parent, dict))
            return 0;
    }
    return 1;
}

/* ------------------------------------------------------------------------------------------------ guards on globals alone */

enum { LONGEST_WAIT = 256 };

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *others;                   /* others(names): all of the guards that read no local name */
    PyObject *state;                    /* state(): those of them that read no name at all */
    PyObject *globals, *tree;           /* a dict, and what guards read of it */
    int known;                          /* whether the guards have held with these names */
    Array names;
    int idle, wait;                     /* calls until names are compared; how many that are the next time */
    unsigned asked;                     /* how often the others were */
} GlobalGuards;

/* Names are read before and must lead there afterwards: then the guards were asked of what they led to. */
static int ask_and_read(GlobalGuards *guards, PyObject *given)
{
    Array names = {NULL, 0, 0}, before;
    int complete = guards->idle == 0 && read_names(&names, guards->tree, -1, guards->globals, ITEM);
    PyErr_Clear();
    guards->asked++;
    int hold = is_true(PyObject_CallOneArg(guards->others, given));
    if (guards->idle > 0)
        guards->idle--;
    else if (hold == 1) {               /* where names change at each call, they are read less and less often */
        guards->idle = guards->wait;
        guards->wait = guards->wait < LONGEST_WAIT ? 2 * guards->wait + 1 : LONGEST_WAIT;
        guards->known = complete && guards->globals != NULL && names_unchanged(&names, guards->globals);
        before = guards->names;
        guards->names = names;
        names = before;
    }
    free_names(&names);
    return hold;
}

static PyObject *global_guards_vectorcall(PyObject *self, PyObject *const *call, size_t flags, PyObject *names)
{
    GlobalGuards *guards = (GlobalGuards *)self;
    if (PyVectorcall_NARGS(flags) != 1 || names != NULL)
        return PyErr_Format(PyExc_TypeError, "guards on globals take the local names");
    if (guards->globals == NULL)        /* the collector has cleared it */
        Py_RETURN_FALSE;
    if (guards->known && names_unchanged(&guards->names, guards->globals)) {
        guards->idle = guards->wait = 0;
        return PyObject_CallNoArgs(guards->state);
    }
    int hold = ask_and_read(guards, call[0]);
    return hold < 0 ? NULL : PyBool_FromLong(hold);
}

static int global_guards_traverse(PyObject *self, visitproc visit, void *arg)
{
    return visit_references(REFERENCES((GlobalGuards *)self, others, tree), visit, arg);
}

static int global_guards_clear(PyObject *self)
{
    ((GlobalGuards *)self)->known = 0;
    free_names(&((GlobalGuards *)self)->names);
    clear_references(REFERENCES((GlobalGuards *)self, others, tree));
    return 0;
}

static PyObject *global_guards_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"others", "state", "globals", "tree", NULL};
    PyObject *others, *state, *globals, *tree;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOO!O", names, &others, &state, &PyDict_Type, &globals, &tree))
        return NULL;
    if (!is_tree(tree))
        return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_TypeError, "this is no tree");
    GlobalGuards *guards = (GlobalGuards *)type->tp_alloc(type, 0);
    if (guards == NULL)
        return NULL;
    guards->vectorcall = global_guards_vectorcall;
    guards->others = Py_NewRef(others);
    guards->state = Py_NewRef(state);
    guards->globals = Py_NewRef(globals);
    guards->tree = Py_NewRef(tree);
    return (PyObject *)guards;
}

static PyMemberDef global_guards_members[] = {
    {"asked", Py_T_UINT, offsetof(GlobalGuards, asked), Py_READONLY, "how often all guards that read globals were asked"},
    {NULL, 0, 0, 0, NULL},
};

static PyTypeObject GlobalGuardsType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "shapedispatch.hit._native.GlobalGuards",
    .tp_doc = "GlobalGuards(others, state, globals, tree)\n--\n\n"
              "Called as others(names): where each name that the tree says is read leads to what it led to when they\n"
              "held, state() alone is asked, which are those of them that read no name.",
    .tp_basicsize = sizeof(GlobalGuards),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_new = global_guards_new,
    .tp_dealloc = clear_and_free,
    .tp_traverse = global_guards_traverse,
    .tp_clear = global_guards_clear,
    .tp_vectorcall_offset = offsetof(GlobalGuards, vectorcall),
    .tp_call = PyVectorcall_Call,
    .tp_members = global_guards_members,
};

/* ---------------------------------------------------------------------------- guards that are asked of some hits only */

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *ask;                      /* ask(args, kwargs): the guards; it says how many hits go without */
    PyObject *look;                     /* the guards themselves, for who asks them always */
    Py_ssize_t left;
} Countdown;

static PyObject *countdown_vectorcall(PyObject *self, PyObject *const *call, size_t flags, PyObject *names)
{
    Countdown *counted = (Countdown *)self;
    if (counted->ask == NULL)           /* the collector has cleared it */
        Py_RETURN_FALSE;
    if (counted->left <= 0 || PyVectorcall_NARGS(flags) != 2 || names != NULL)
        return PyObject_Vectorcall(counted->ask, call, flags, names);
    counted->left--;
    Py_RETURN_TRUE;
}

static int countdown_traverse(PyObject *self, visitproc visit, void *arg)
{
    return visit_references(REFERENCES((Countdown *)self, ask, look), visit, arg);
}

static int countdown_clear(PyObject *self)
{
    clear_references(REFERENCES((Countdown *)self, ask, look));
    return 0;
}

static PyObject *countdown_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(kwargs))
{
    PyObject *ask, *look;
    if (!PyArg_ParseTuple(args, "OO", &ask, &look))
        return NULL;
    Countdown *counted = (Countdown *)type->tp_alloc(type, 0);
    if (counted != NULL) {
        counted->vectorcall = countdown_vectorcall;
        counted->ask = Py_NewRef(ask);
        counted->look = Py_NewRef(look);
    }
    return (PyObject *)counted;
}

static PyMemberDef countdown_members[] = {
    {"left", Py_T_PYSSIZET, offsetof(Countdown, left), 0, "of how many hits the guards are not asked"},
    {"look", Py_T_OBJECT_EX, offsetof(Countdown, look), Py_READONLY, "the guards"},
    {NULL, 0, 0, 0, NULL},
};

static PyTypeObject CountdownType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "shapedispatch.hit._native.Countdown",
    .tp_doc = "Countdown(ask, look)\n--\n\nCalled as check(args, kwargs): True so many times as `left` says, then ask's.",
    .tp_basicsize = sizeof(Countdown),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_new = countdown_new,
    .tp_dealloc = clear_and_free,
    .tp_traverse = countdown_traverse,
    .tp_clear = countdown_clear,
    .tp_vectorcall_offset = offsetof(Countdown, vectorcall),
    .tp_call = PyVectorcall_Call,
    .tp_members = countdown_members,
};
