/*
 * Guards that most hits need not ask: those on globals, and those of what is right in every state.
 *
 * The former hold while each name that they read leads to what it led to when they held. Where a dict has not changed
 * since, its names do; else each of them is looked up anew, for a dict of globals may change all the time, by names that
 * no guard reads. Nothing but constants and code is held: each value is compared with what stands there now, as the
 * guards compare it, by address and type.
 */

/* --------------------------------------------------------------------------------------------------- what names led to */

typedef struct {
    PyObject *key, *value;              /* the latter is not held */
    PyTypeObject *type;                 /* the value's */
    PyObject *held;                     /* a constant, which is the value; a function's code; or NULL */
    int fixed;                          /* whether the value is for ever of this type, and nothing more is read of it */
} SeenName;

/* A dict that names were read from: they stand together, behind those of the dicts that lead to it. */
typedef struct {
    int holder;                         /* the name whose value this is, or is the dict of; -1: the globals */
    int end;                            /* of its names */
    PyObject *dict;                     /* not held */
    uint64_t mark, count;               /* of its state, and of changes, when all of its names led where they led */
} SeenPlace;

typedef struct {
    Array places, names;
} Names;

static void free_names(Names *names)
{
    SeenName *seen = names->names.items;
    for (int i = 0; i < names->names.count; i++) {
        Py_DECREF(seen[i].key);
        Py_XDECREF(seen[i].held);
    }
    PyMem_Free(seen);
    PyMem_Free(names->places.items);
    *names = (Names){{NULL, 0, 0}, {NULL, 0, 0}};
}

/* The dict that names in a value are looked up in, borrowed; NULL for what has other rules. */
static PyObject *names_in(PyObject *value)
{
    if (PyDict_CheckExact(value))
        return value;
    return Py_IS_TYPE(value, &PyModule_Type) ? PyModule_GetDict(value) : NULL;
}

/* Globals are not watched: a program that counts in them would pay for each step. */
static void mark_place(SeenPlace *place, PyObject *dict)
{
    place->dict = dict;
    place->count = changes.count;
    place->mark = !changes.relied_on || (BY_WATCHER && place->holder < 0) ? NEVER : mark_dict(dict);
}

static int place_unchanged(const SeenPlace *place, const PyObject *dict)
{
    return changes.relied_on && place->mark != NEVER && place->dict == dict
        && dict_unchanged(dict, place->mark, place->count);
}

/* Whether a value that is still there is what it was. */
static int value_unchanged(const SeenName *seen)
{
    return seen->fixed || (Py_TYPE(seen->value) == seen->type
        && (!PyFunction_Check(seen->value) || PyFunction_GET_CODE(seen->value) == seen->held));
}

static int name_unchanged(const SeenName *seen, PyObject *dict, int marked)
{
    PyObject *now = marked ? seen->value : PyDict_GetItemWithError(dict, seen->key);
    return now != NULL && now == seen->value && value_unchanged(seen);
}

/* Each place stands behind the name that leads to it, whose value is there if that was found unchanged. */
static int names_unchanged(const Names *names, PyObject *globals)
{
    const SeenName *all = names->names.items;
    SeenPlace *place = names->places.items, *end = place + names->places.count;
    for (int i = 0; place < end; place++) {
        PyObject *dict = place->holder < 0 ? globals : names_in(all[place->holder].value);
        if (dict == NULL)
            return 0;
        int marked = place_unchanged(place, dict);
        if (!marked)
            mark_place(place, dict);    /* before its names are looked up: a change after that is seen */
        for (; i < place->end; i++)
            if (!name_unchanged(&all[i], dict, marked)) {
                place->mark = NEVER;
                PyErr_Clear();
                return 0;
            }
    }
    return 1;
}

/* -------------------------------------------------------------------------------------------------------------- reading */

/* A dict whose names are still to be read. */
typedef struct {
    PyObject *tree, *dict;
    int holder;
    Py_UCS4 by;                         /* the way to its names */
} PendingNames;

/* Each of these returns whether all that is read can be compared later. None runs Python code. */

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

/* Code and the types of modules may be replaced; of all other types, those that are written in C may not. */
static int is_fixed(PyObject *value)
{
    return PyType_HasFeature(Py_TYPE(value), Py_TPFLAGS_IMMUTABLETYPE) && !PyFunction_Check(value)
        && !PyModule_Check(value);
}

static int read_name(Names *names, Array *pending, PyObject *tree, PyObject *key, PyObject *dict)
{
    PyObject *value = PyUnicode_CheckExact(key) ? PyDict_GetItemWithError(dict, key) : NULL;
    SeenName *seen = value == NULL ? NULL : append(&names->names, sizeof *seen);
    if (seen == NULL)
        return 0;
    *seen = (SeenName){Py_NewRef(key), value, Py_TYPE(value), NULL, is_fixed(value)};
    PyUnicode_InternInPlace(&seen->key);
    PyObject *inner = is_leaf(tree) ? NULL : names_in(value);
    if (inner == NULL)
        return read_whole(seen, tree);
    PendingNames *next = is_read(tree) ? NULL : append(pending, sizeof *next);
    if (next != NULL)
        *next = (PendingNames){tree, inner, names->names.count - 1, inner == value ? ITEM : ATTRIBUTE};
    return next != NULL;
}

/* A module's own attributes are what its dict holds, but for what its type decides about. */
static int read_place(Names *names, Array *pending, PendingNames from)
{
    SeenPlace *place = append(&names->places, sizeof *place);
    if (place == NULL)
        return 0;
    place->holder = from.holder;
    mark_place(place, from.dict);
    FOR_EACH_BRANCH(i, from.tree) {
        PyObject *key = part(from.tree, i, 1);
        if (way(from.tree, i) != from.by || (from.by == ATTRIBUTE && class_attribute(&PyModule_Type, key) != NULL)
            || !read_name(names, pending, part(from.tree, i, 2), key, from.dict))
            return 0;
    }
    place->end = names->names.count;
    return 1;
}

static int read_names(Names *names, PyObject *tree, PyObject *globals)
{
    Array pending = {NULL, 0, 0};
    int complete = read_place(names, &pending, (PendingNames){tree, globals, -1, ITEM});
    for (int i = 0; complete && i < pending.count; i++)
        complete = read_place(names, &pending, ((PendingNames *)pending.items)[i]);
    PyMem_Free(pending.items);
    return complete;
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
    Names names;
    int idle, wait;                     /* calls until names are compared; how many that are the next time */
    unsigned asked;                     /* how often the others were */
} GlobalGuards;

/* Names are read before and must lead there afterwards: then the guards were asked of what they led to. */
static int ask_and_read(GlobalGuards *guards, PyObject *given)
{
    Names names = {{NULL, 0, 0}, {NULL, 0, 0}}, before;
    int complete = guards->idle == 0 && read_names(&names, guards->tree, guards->globals);
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
    PyObject *look;                     /* look(args, kwargs): the guards, for who asks them always */
    Py_ssize_t left, most;              /* how many hits go without them; how many they are at most */
    uint64_t drawn;                     /* the last of the numbers that look random */
    char doubted;                       /* whether they did not hold when they were asked last */
} Countdown;

/* From 0 to `most`, each as often as another: Marsaglia's xorshift, as hit/call.py has it. */
static Py_ssize_t draw(Countdown *counted)
{
    counted->drawn ^= counted->drawn << 13;
    counted->drawn ^= counted->drawn >> 7;
    counted->drawn ^= counted->drawn << 17;
    return (Py_ssize_t)(counted->drawn % (uint64_t)(counted->most + 1));
}

static PyObject *countdown_vectorcall(PyObject *self, PyObject *const *call, size_t flags, PyObject *names)
{
    Countdown *counted = (Countdown *)self;
    if (counted->look == NULL)          /* the collector has cleared it */
        Py_RETURN_FALSE;
    if (counted->left > 0) {
        counted->left--;
        Py_RETURN_TRUE;
    }
    int hold = is_true(PyObject_Vectorcall(counted->look, call, flags, names));
    if (hold < 0)
        return NULL;
    if (hold || counted->doubted)
        counted->left = draw(counted);
    counted->doubted = !hold && !counted->doubted;
    return PyBool_FromLong(hold);
}

static int countdown_traverse(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(((Countdown *)self)->look);
    return 0;
}

static int countdown_clear(PyObject *self)
{
    Py_CLEAR(((Countdown *)self)->look);
    return 0;
}

static PyObject *countdown_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(kwargs))
{
    PyObject *look;
    Py_ssize_t most;
    unsigned long long drawn;
    if (!PyArg_ParseTuple(args, "OnK", &look, &most, &drawn))
        return NULL;
    if (most < 0 || drawn == 0)
        return PyErr_Format(PyExc_ValueError, "no numbers from 0 to %zd are drawn of %llu", most, drawn);
    Countdown *counted = (Countdown *)type->tp_alloc(type, 0);
    if (counted != NULL) {
        counted->vectorcall = countdown_vectorcall;
        counted->look = Py_NewRef(look);
        counted->most = most;
        counted->drawn = drawn;
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
    .tp_doc = "Countdown(look, most, drawn)\n--\n\n"
              "Called as check(args, kwargs): True so many times as `left` says, then what look says, and `left` is drawn\n"
              "anew, from 0 to most. What does not hold is asked once more before.",
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
