/* The hit path of one dispatcher: from a signed call to the slot that the table keeps for it, and the run. */

/* -------------------------------------------------------------------------------------- a signed call, and its slot */

typedef union {
    uint64_t word;
    PyObject *object;
} Cell;

typedef struct CacheNode {
    PyObject_VAR_HEAD
    uint64_t hash;
    PyObject *slot;                     /* the table's; NULL before linking and after unlinking */
    struct CacheNode *next_leaving;
    int word_count, object_count;
    Cell cells[1];                      /* first the words, then the objects */
} CacheNode;

static int node_traverse(PyObject *self, visitproc visit, void *arg)
{
    CacheNode *node = (CacheNode *)self;
    Py_VISIT(node->slot);
    for (int i = 0; i < node->object_count; i++)
        Py_VISIT(node->cells[node->word_count + i].object);
    return 0;
}

static int node_clear(PyObject *self)
{
    CacheNode *node = (CacheNode *)self;
    Py_CLEAR(node->slot);
    while (node->object_count > 0)
        Py_DECREF(node->cells[node->word_count + --node->object_count].object);
    return 0;
}

static void node_dealloc(PyObject *self)
{
    PyObject_GC_UnTrack(self);
    node_clear(self);
    PyObject_GC_Del(self);
}

static PyTypeObject CacheNodeType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "shapedispatch.hit._native.CacheNode",
    .tp_doc = "A signed call, and the table's slot for it.",
    .tp_basicsize = offsetof(CacheNode, cells),
    .tp_itemsize = sizeof(Cell),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_dealloc = node_dealloc,
    .tp_traverse = node_traverse,
    .tp_clear = node_clear,
};

/* A node without a slot; it takes over the signature's objects. NULL with an error set. */
static CacheNode *new_node(CallSignature *sig, uint64_t hash)
{
    CacheNode *node = PyObject_GC_NewVar(CacheNode, &CacheNodeType, sig->word_count + sig->object_count);
    if (node == NULL)
        return NULL;
    node->hash = hash;
    node->slot = NULL;
    node->word_count = sig->word_count;
    node->object_count = sig->object_count;
    memcpy(node->cells, sig->words, (size_t)sig->word_count * sizeof(Cell));
    memcpy(node->cells + sig->word_count, sig->objects, (size_t)sig->object_count * sizeof(Cell));
    sig->object_count = 0;
    PyObject_GC_Track(node);
    return node;
}

/* Objects that are held for identity differ in a word already; the others have an equality that runs no Python code. */
static int same_object(PyObject *a, PyObject *b)
{
    if (a == b)
        return 1;
    int same = Py_TYPE(a) == Py_TYPE(b) && !PyType_Check(a) ? PyObject_RichCompareBool(a, b, Py_EQ) : 0;
    if (same < 0)
        PyErr_Clear();
    return same == 1;
}

static int node_is_of(const CacheNode *node, const CallSignature *sig, uint64_t hash)
{
    if (node->hash != hash || node->word_count != sig->word_count || node->object_count != sig->object_count)
        return 0;
    if (memcmp(node->cells, sig->words, (size_t)sig->word_count * sizeof(Cell)) != 0)
        return 0;
    for (int i = 0; i < sig->object_count; i++)
        if (!same_object(node->cells[node->word_count + i].object, sig->objects[i]))
            return 0;
    return 1;
}

/* --------------------------------------------------------------------------------------------------------- the path */

typedef struct FastPath {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    int (*packs)(const struct FastPath *fast_path, CallSignature *sig, PyObject *args, PyObject *kwargs);    /* as sign_call */
    PyObject *cache_miss;              /* cache_miss(args, kwargs, node or None): the same call in Python */
    PyObject *fallback;                  /* instead(*args, **kwargs): where a build has raised that may be retried */
    char receiver, off;
    int overlap;                        /* whether the keys of the in the cache slots hold which arguments overlap */
    PyTypeObject *slot_type, *entry_type;
    Py_ssize_t entries_at, used_at, run_at, check_at, retry_at;
    PyObject *numbers;                  /* an iterator: the table's numbers of hits */
    CacheNode **places;                      /* open addressing, linear probing; at most half full */
    size_t room, held;
} FastPath;

enum { SMALLEST_ROOM = 8 };

static int sign_for(const FastPath *fast_path, CallSignature *sig, PyObject *args, PyObject *kwargs)
{
    return sign_call(sig, args, kwargs, fast_path->receiver, fast_path->overlap);
}

/* The place of this signed call, or the free place where it would stand. */
static size_t place_of(const FastPath *fast_path, const CallSignature *sig, uint64_t hash)
{
    size_t place = hash & (fast_path->room - 1);
    while (fast_path->places[place] != NULL && !node_is_of(fast_path->places[place], sig, hash))
        place = (place + 1) & (fast_path->room - 1);
    return place;
}

static size_t free_place(CacheNode **places, size_t room, uint64_t hash)
{
    size_t place = hash & (room - 1);
    while (places[place] != NULL)
        place = (place + 1) & (room - 1);
    return place;
}

/* 0 with an error set where memory is out; nothing has changed then. */
static int make_room(FastPath *fast_path)
{
    if (2 * (fast_path->held + 1) <= fast_path->room)
        return 1;
    size_t room = 2 * fast_path->room;
    CacheNode **places = PyMem_Calloc(room, sizeof *places);
    if (places == NULL) {
        PyErr_NoMemory();
        return 0;
    }
    for (size_t i = 0; i < fast_path->room; i++)
        if (fast_path->places[i] != NULL)
            places[free_place(places, room, fast_path->places[i]->hash)] = fast_path->places[i];
    PyMem_Free(fast_path->places);
    fast_path->places = places;
    fast_path->room = room;
    return 1;
}

/* Free a place and move up what had to give way to it, so that every probe still ends at a free place. */
static void vacate(FastPath *fast_path, size_t gap)
{
    size_t mask = fast_path->room - 1;
    for (size_t place = (gap + 1) & mask; fast_path->places[place] != NULL; place = (place + 1) & mask) {
        size_t home = fast_path->places[place]->hash & mask;
        if (((place - home) & mask) >= ((place - gap) & mask)) {
            fast_path->places[gap] = fast_path->places[place];
            gap = place;
        }
    }
    fast_path->places[gap] = NULL;
    fast_path->held--;
}

static void take_out(FastPath *fast_path, CacheNode *node)
{
    size_t place = node->hash & (fast_path->room - 1);
    while (fast_path->places[place] != NULL && fast_path->places[place] != node)
        place = (place + 1) & (fast_path->room - 1);
    if (fast_path->places[place] == NULL)
        return;
    vacate(fast_path, place);
    Py_CLEAR(node->slot);
    Py_DECREF(node);
}

/* Nodes first leave the path and are let go afterwards: letting go may run code that comes back here. */
static void remove_all_nodes(FastPath *fast_path)
{
    CacheNode *leaving = NULL;
    for (size_t place = 0; place < fast_path->room; place++)
        if (fast_path->places[place] != NULL) {
            fast_path->places[place]->next_leaving = leaving;
            leaving = fast_path->places[place];
            fast_path->places[place] = NULL;
        }
    fast_path->held = 0;
    while (leaving != NULL) {
        CacheNode *node = leaving;
        leaving = node->next_leaving;
        Py_CLEAR(node->slot);
        Py_DECREF(node);
    }
}

/* -------------------------------------------------------------------------------------------------- a hit, in steps */

/* A field of a Python object with __slots__, borrowed; NULL where it is unset. */
static PyObject *field(PyObject *object, Py_ssize_t at)
{
    PyObject *value;
    memcpy(&value, (const char *)object + at, sizeof value);
    return value;
}

/* The node of a signed call, or a fresh one without a slot; NULL where memory is out. The signature's objects are let go. */
static CacheNode *node_of(const FastPath *fast_path, CallSignature *sig)
{
    uint64_t hash = hash_of(sig);
    CacheNode *node = fast_path->places[place_of(fast_path, sig, hash)];
    Py_XINCREF(node);
    if (node == NULL && (node = new_node(sig, hash)) == NULL)
        PyErr_Clear();
    drop_objects(sig);
    return node;
}

/* The node of a call; NULL where C cannot judge it. No error is set. */
static CacheNode *lookup(const FastPath *fast_path, PyObject *args, PyObject *kwargs)
{
    CallSignature sig;
    return fast_path->packs(fast_path, &sig, args, kwargs) ? node_of(fast_path, &sig) : NULL;
}

/* Whether an entry has a build whose guards hold now; -1 with an error set where asking raised. */
static int serves(const FastPath *fast_path, PyObject *entry, PyObject *args, PyObject *kwargs)
{
    PyObject *run = field(entry, fast_path->run_at), *check = field(entry, fast_path->check_at);
    if (run == NULL || run == Py_None || check == NULL)
        return 0;
    if (check == Py_None)
        return 1;
    PyObject *call[] = {args, kwargs};
    Py_INCREF(check);
    PyObject *verdict = PyObject_Vectorcall(check, call, 2, NULL);
    Py_DECREF(check);
    if (verdict == NULL)
        return -1;
    int serving = PyObject_IsTrue(verdict);
    Py_DECREF(verdict);
    return serving;
}

/* The newest entry of a slot that serves the call; NULL where none does, with an error set where asking raised. */
static PyObject *serving_entry(const FastPath *fast_path, PyObject *slot, PyObject *args, PyObject *kwargs)
{
    PyObject *entries = field(slot, fast_path->entries_at), *found = NULL;
    if (entries == NULL || !PyTuple_CheckExact(entries))
        return NULL;
    Py_INCREF(entries);     /* asking an entry's guards may publish another */
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(entries) && found == NULL; i++) {
        PyObject *entry = PyTuple_GET_ITEM(entries, i);
        int serving = Py_TYPE(entry) == fast_path->entry_type ? serves(fast_path, entry, args, kwargs) : 0;
        if (serving < 0)
            break;
        found = serving ? entry : NULL;
    }
    Py_XINCREF(found);
    Py_DECREF(entries);
    return found;
}

/* Number the hit, as Table.find does: the table learns from it how many there were and which keys were used last. */
static int number_hit(const FastPath *fast_path, PyObject *slot)
{
    PyObject *number = Py_TYPE(fast_path->numbers)->tp_iternext(fast_path->numbers), *before = field(slot, fast_path->used_at);
    if (number == NULL)
        return 0;
    memcpy((char *)slot + fast_path->used_at, &number, sizeof number);
    Py_XDECREF(before);
    return 1;
}

static PyObject *call_with(PyObject *callable, PyObject *args, PyObject *kwargs)
{
    if (PyDict_GET_SIZE(kwargs) == 0)
        return PyObject_Vectorcall(callable, &PyTuple_GET_ITEM(args, 0), (size_t)PyTuple_GET_SIZE(args), NULL);
    return PyObject_Call(callable, args, kwargs);
}

/* The exception that is being raised, taken from there. */
static PyObject *take_raised(void)
{
#if PY_VERSION_HEX >= 0x030C0000
    return PyErr_GetRaisedException();
#else
    PyObject *type, *error, *traceback;
    PyErr_Fetch(&type, &error, &traceback);
    PyErr_NormalizeException(&type, &error, &traceback);
    if (traceback != NULL)
        PyException_SetTraceback(error, traceback);
    Py_XDECREF(type);
    Py_XDECREF(traceback);
    return error;
#endif
}

/* `except Exception: return instead(...)`: meanwhile what the build raised is the exception being handled. */
static PyObject *fallback(const FastPath *fast_path, PyObject *args, PyObject *kwargs)
{
    PyObject *before = PyErr_GetHandledException(), *error = take_raised();
    PyErr_SetHandledException(error);
    PyObject *answer = call_with(fast_path->fallback, args, kwargs);
    PyErr_SetHandledException(before);
    Py_XDECREF(before);
    Py_XDECREF(error);
    return answer;
}

static PyObject *run_entry(const FastPath *fast_path, PyObject *entry, PyObject *args, PyObject *kwargs)
{
    PyObject *run = field(entry, fast_path->run_at);
    int retry = field(entry, fast_path->retry_at) == Py_True;
    Py_INCREF(run);         /* the table may let the build go while it runs */
    PyObject *answer = call_with(run, args, kwargs);
    if (answer == NULL && retry && PyErr_ExceptionMatches(PyExc_Exception))
        answer = fallback(fast_path, args, kwargs);
    Py_DECREF(run);
    return answer;
}

/* The entry for this call by a known node, counted; NULL where there is none, with an error set where asking raised. */
static PyObject *hit_entry(const FastPath *fast_path, const CacheNode *node, PyObject *args, PyObject *kwargs)
{
    if (node == NULL || node->slot == NULL)
        return NULL;
    PyObject *slot = Py_NewRef(node->slot);
    PyObject *entry = serving_entry(fast_path, slot, args, kwargs);
    /* Its build may have been lost while the guards were asked. */
    if (entry != NULL && (field(entry, fast_path->run_at) == Py_None || !number_hit(fast_path, slot)))
        Py_CLEAR(entry);
    Py_DECREF(slot);
    return entry;
}

static PyObject *by_python(const FastPath *fast_path, PyObject *args, PyObject *kwargs, CacheNode *node)
{
    if (fast_path->cache_miss == NULL)      /* the collector has cleared it, and what goes with it calls it once more */
        return PyErr_Format(PyExc_RuntimeError, "the dispatcher of this path is being collected");
    /* A node that has a slot already is no news for the table. */
    PyObject *fresh = node != NULL && node->slot == NULL ? (PyObject *)node : Py_None;
    PyObject *call[] = {args, kwargs, fresh};
    return PyObject_Vectorcall(fast_path->cache_miss, call, 3, NULL);
}

static PyObject *fast_path_vectorcall(PyObject *self, PyObject *const *call, size_t flags, PyObject *names)
{
    FastPath *fast_path = (FastPath *)self;
    if (PyVectorcall_NARGS(flags) != 2 || names != NULL)
        return PyErr_Format(PyExc_TypeError, "a path takes the arguments of a call as a tuple and a dict");
    PyObject *args = call[0], *kwargs = call[1];
    CacheNode *node = fast_path->off ? NULL : lookup(fast_path, args, kwargs);
    PyObject *entry = hit_entry(fast_path, node, args, kwargs), *answer = NULL;
    if (entry != NULL) {
        Py_XDECREF(node);
        answer = run_entry(fast_path, entry, args, kwargs);
        Py_DECREF(entry);
        return answer;
    }
    if (!PyErr_Occurred())
        answer = by_python(fast_path, args, kwargs, node);
    Py_XDECREF(node);
    return answer;
}

/* ---------------------------------------------------------------------------------------- what the table asks of it */

PyDoc_STRVAR(find_doc, "find(args, kwargs, /)\n--\n\n"
    "The slot in the cache to this call, or None; nothing is counted or run.");

static PyObject *fast_path_find(PyObject *self, PyObject *const *call, Py_ssize_t count)
{
    if (count != 2)
        return PyErr_Format(PyExc_TypeError, "find takes args and kwargs");
    FastPath *fast_path = (FastPath *)self;
    CallSignature sig;
    PyObject *slot = NULL;
    if (fast_path->packs(fast_path, &sig, call[0], call[1])) {
        CacheNode *node = fast_path->places[place_of(fast_path, &sig, hash_of(&sig))];
        slot = node == NULL ? NULL : node->slot;
        Py_XINCREF(slot);
        drop_objects(&sig);
    }
    if (slot == NULL)
        Py_RETURN_NONE;
    return slot;
}

/* Keys of another form make every node wrong. */
static void set_overlap(FastPath *fast_path, int overlap)
{
    if (fast_path->overlap == overlap)
        return;
    fast_path->overlap = overlap;
    remove_all_nodes(fast_path);
}

/* Whether the call signatures as it did when the node was made, and nothing stands in the node's place. */
static int still_signs_as(const FastPath *fast_path, const CacheNode *node, PyObject *args, PyObject *kwargs)
{
    CallSignature sig;
    if (!fast_path->packs(fast_path, &sig, args, kwargs))
        return 0;
    uint64_t hash = hash_of(&sig);
    int same = node_is_of(node, &sig, hash) && fast_path->places[place_of(fast_path, &sig, hash)] == NULL;
    drop_objects(&sig);
    return same;
}

PyDoc_STRVAR(insert_doc, "node(node, slot, args, kwargs, overlap, /)\n--\n\n"
    "Let calls that sign_call as this one find the slot; whether that was done.\n\n"
    "The node was made of the call before the Python path made its key. The call is signed again here: if both agree,\n"
    "nothing has changed in between, and the key is of the same state as the node.");

static PyObject *fast_path_insert(PyObject *self, PyObject *const *call, Py_ssize_t count)
{
    FastPath *fast_path = (FastPath *)self;
    if (count != 5 || Py_TYPE(call[0]) != &CacheNodeType || Py_TYPE(call[1]) != fast_path->slot_type || fast_path->numbers == NULL)
        return PyErr_Format(PyExc_TypeError, "node takes a node, a slot, args, kwargs and overlap");
    CacheNode *node = (CacheNode *)call[0];
    set_overlap(fast_path, call[4] == Py_True);
    if (node->slot != NULL || !still_signs_as(fast_path, node, call[2], call[3]))
        Py_RETURN_FALSE;
    if (!make_room(fast_path))
        return NULL;
    fast_path->places[free_place(fast_path->places, fast_path->room, node->hash)] = node;
    fast_path->held++;
    Py_INCREF(node);
    Py_INCREF(call[1]);
    node->slot = call[1];
    Py_RETURN_TRUE;
}

PyDoc_STRVAR(remove_doc, "unlink(node, /)\n--\n\nNo call finds this node's slot any more.");

static PyObject *fast_path_remove(PyObject *self, PyObject *node)
{
    if (Py_TYPE(node) != &CacheNodeType)
        return PyErr_Format(PyExc_TypeError, "unlink takes a node");
    take_out((FastPath *)self, (CacheNode *)node);
    Py_RETURN_NONE;
}

PyDoc_STRVAR(clear_doc, "clear(/)\n--\n\nNo call finds any slot any more.");

static PyObject *fast_path_clear_method(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    remove_all_nodes((FastPath *)self);
    Py_RETURN_NONE;
}

PyDoc_STRVAR(number_doc, "number(numbers, /)\n--\n\nTake the numbers of hits from this iterator.");

static PyObject *fast_path_number(PyObject *self, PyObject *numbers)
{
    if (!PyIter_Check(numbers))
        return PyErr_Format(PyExc_TypeError, "number takes an iterator");
    Py_XSETREF(((FastPath *)self)->numbers, Py_NewRef(numbers));
    Py_RETURN_NONE;
}

/* Where an instance keeps a field of its __slots__; -1 with an error set where it has none of that name. */
static Py_ssize_t field_at(PyTypeObject *type, const char *name)
{
    Py_ssize_t at = -1;
    PyObject *member = PyObject_GetAttrString((PyObject *)type, name);
    if (member == NULL)
        return -1;
    if (Py_TYPE(member) == &PyMemberDescr_Type && PyDescr_TYPE(member) == type
        && ((PyMemberDescrObject *)member)->d_member->type == T_OBJECT_EX)
        at = ((PyMemberDescrObject *)member)->d_member->offset;
    else
        PyErr_Format(PyExc_TypeError, "%s.%s is no field in __slots__", type->tp_name, name);
    Py_DECREF(member);
    return at;
}

PyDoc_STRVAR(read_doc, "read(slot_type, entry_type, /)\n--\n\n"
    "Learn where slots keep `entries` and `used`, and entries `run`, `check` and `retry`; raises TypeError.");

static PyObject *fast_path_read(PyObject *self, PyObject *const *types, Py_ssize_t count)
{
    if (count != 2 || !PyType_Check(types[0]) || !PyType_Check(types[1]))
        return PyErr_Format(PyExc_TypeError, "read takes the types of slots and of entries");
    FastPath *fast_path = (FastPath *)self;
    PyTypeObject *slot = (PyTypeObject *)types[0], *entry = (PyTypeObject *)types[1];
    if ((fast_path->entries_at = field_at(slot, "entries")) < 0 || (fast_path->used_at = field_at(slot, "used")) < 0
        || (fast_path->run_at = field_at(entry, "run")) < 0 || (fast_path->check_at = field_at(entry, "check")) < 0
        || (fast_path->retry_at = field_at(entry, "retry")) < 0)
        return NULL;
    Py_XSETREF(fast_path->slot_type, (PyTypeObject *)Py_NewRef(types[0]));
    Py_XSETREF(fast_path->entry_type, (PyTypeObject *)Py_NewRef(types[1]));
    Py_RETURN_NONE;
}

/* ----------------------------------------------------------------------------------------------- the path as a type */

static FastPath *empty_fast_path(PyTypeObject *type)
{
    FastPath *fast_path = (FastPath *)type->tp_alloc(type, 0);
    if (fast_path == NULL)
        return NULL;
    fast_path->places = PyMem_Calloc(SMALLEST_ROOM, sizeof *fast_path->places);
    if (fast_path->places == NULL) {
        Py_DECREF(fast_path);
        PyErr_NoMemory();
        return NULL;
    }
    fast_path->room = SMALLEST_ROOM;
    return fast_path;
}

static PyObject *fast_path_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"cache_miss", "fallback", "receiver", NULL};
    PyObject *cache_miss, *fallback;
    int receiver = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO|p", names, &cache_miss, &fallback, &receiver))
        return NULL;
    FastPath *fast_path = empty_fast_path(type);
    if (fast_path == NULL)
        return NULL;
    fast_path->vectorcall = fast_path_vectorcall;
    fast_path->packs = sign_for;
    fast_path->cache_miss = Py_NewRef(cache_miss);
    fast_path->fallback = Py_NewRef(fallback);
    fast_path->receiver = (char)receiver;
    return (PyObject *)fast_path;
}

static int fast_path_traverse(PyObject *self, visitproc visit, void *arg)
{
    FastPath *fast_path = (FastPath *)self;
    Py_VISIT(fast_path->cache_miss);
    Py_VISIT(fast_path->fallback);
    Py_VISIT(fast_path->numbers);
    Py_VISIT(fast_path->slot_type);
    Py_VISIT(fast_path->entry_type);
    for (size_t i = 0; i < fast_path->room; i++)
        Py_VISIT(fast_path->places[i]);
    return 0;
}

static int fast_path_clear(PyObject *self)
{
    FastPath *fast_path = (FastPath *)self;
    remove_all_nodes(fast_path);
    Py_CLEAR(fast_path->numbers);
    Py_CLEAR(fast_path->cache_miss);
    Py_CLEAR(fast_path->fallback);
    Py_CLEAR(fast_path->slot_type);
    Py_CLEAR(fast_path->entry_type);
    return 0;
}

static void fast_path_dealloc(PyObject *self)
{
    PyObject_GC_UnTrack(self);
    fast_path_clear(self);
    PyMem_Free(((FastPath *)self)->places);
    Py_TYPE(self)->tp_free(self);
}

static PyMethodDef fast_path_methods[] = {
    {"find", (PyCFunction)(void (*)(void))fast_path_find, METH_FASTCALL, find_doc},
    {"insert", (PyCFunction)(void (*)(void))fast_path_insert, METH_FASTCALL, insert_doc},
    {"remove", fast_path_remove, METH_O, remove_doc},
    {"clear", fast_path_clear_method, METH_NOARGS, clear_doc},
    {"number", fast_path_number, METH_O, number_doc},
    {"read", (PyCFunction)(void (*)(void))fast_path_read, METH_FASTCALL, read_doc},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef fast_path_members[] = {
    {"off", T_BOOL, offsetof(FastPath, off), 0, "whether every call takes the Python path"},
    {"held", T_PYSSIZET, offsetof(FastPath, held), READONLY, "how many calls are in the cache"},
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(FastPath, vectorcall), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyTypeObject FastPathType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "shapedispatch.hit._native.FastPath",
    .tp_doc = "FastPath(cache_miss, instead, receiver=False)\n--\n\n"
              "The hit path of one dispatcher: path(args, kwargs) runs what the table holds for this call.",
    .tp_basicsize = sizeof(FastPath),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_new = fast_path_new,
    .tp_dealloc = fast_path_dealloc,
    .tp_traverse = fast_path_traverse,
    .tp_clear = fast_path_clear,
    .tp_call = PyVectorcall_Call,
    .tp_vectorcall_offset = offsetof(FastPath, vectorcall),
    .tp_methods = fast_path_methods,
    .tp_members = fast_path_members,
};
