/* The hit path of one dispatcher, as hit/call.py has it: off, no modes, sign, look up, guards, run. */

/* How a call ended in C: answered; not C's to answer, without an error; or raised, with one set. */
typedef enum { HIT, MISS, RAISED } Result;

typedef struct FastPath {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    /* As sign_call. */
    int (*sign)(const struct FastPath *path, CallSignature *sig, PyObject *args, PyObject *kwargs);
    PyObject *cache_miss;               /* cache_miss(args, kwargs, node or None): the same call in Python */
    PyObject *fallback;                 /* fallback(*args, **kwargs): where a build has raised that may be retried */
    PyObject *numbers;                  /* an iterator: the table's numbers of hits */
    PyObject *plain;                    /* runs calls that are spared */
    PyObject *slot_type, *entry_type;
    Py_ssize_t to_spare, spared;        /* how many of the next calls whose key is not known are; and how many were */
    Py_ssize_t to_pass, passed;         /* the same of those that are answered as their kin, and not published */
    Py_ssize_t most_sights;             /* only those are that were not seen lately, among so many; 0: any, and none passes */
    uint64_t *sights;                   /* which were, of those that could be spared so, or pass */
    Py_ssize_t entries_at, used_at, run_at, check_at, retry_at;
    char receiver, off, frozen;         /* the last: whether nothing may be timed */
    Py_ssize_t left;                    /* the hit at which this comes to 0 goes to Python, to be timed again */
    int overlap;                        /* whether keys now hold which arguments overlap */
    SignatureCache cache;
    SignatureCache kin;                 /* without places for kernels */
} FastPath;

/* -------------------------------------------------------------------------------------------------- a hit, in steps */

/* What an entry runs, borrowed; NULL where its build was let go. */
static PyObject *run_of(const FastPath *path, PyObject *entry)
{
    PyObject *run = field(entry, path->run_at);
    return run == Py_None ? NULL : run;
}

/* The node of a call, maybe a fresh one; NULL where C cannot judge the call. No error is set. */
static CacheNode *lookup(FastPath *path, PyObject *args, PyObject *kwargs)
{
    CallSignature sig;
    return path->sign(path, &sig, args, kwargs) ? node_of(&path->cache, &sig) : NULL;
}

/* Whether an entry has a build whose guards hold now. */
static Result ask_guards(const FastPath *path, PyObject *entry, PyObject *args, PyObject *kwargs)
{
    PyObject *check = field(entry, path->check_at);
    if (run_of(path, entry) == NULL || check == NULL)
        return MISS;
    if (check == Py_None)
        return HIT;
    PyObject *call[] = {args, kwargs};
    Py_INCREF(check);
    int holding = is_true(PyObject_Vectorcall(check, call, 2, NULL));
    Py_DECREF(check);
    if (holding < 0 && PyErr_ExceptionMatches(PyExc_Exception)) {
        PyErr_Clear();      /* Python asks again, and knows what to do */
        return MISS;
    }
    return holding < 0 ? RAISED : holding ? HIT : MISS;
}

/* The newest entry of a slot whose guards hold, as a new reference. */
static Result entry_for(const FastPath *path, PyObject *slot, PyObject *args, PyObject *kwargs, PyObject **found)
{
    PyObject *entries = field(slot, path->entries_at), *entry = NULL;
    if (entries == NULL || !PyTuple_CheckExact(entries))
        return MISS;
    Result result = MISS;
    Py_INCREF(entries);     /* asking an entry's guards may publish another */
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(entries) && result == MISS; i++) {
        entry = PyTuple_GET_ITEM(entries, i);
        if (Py_IS_TYPE(entry, (PyTypeObject *)path->entry_type))
            result = ask_guards(path, entry, args, kwargs);
    }
    if (result == HIT && run_of(path, entry) == NULL)
        result = MISS;      /* its build was lost while the guards were asked */
    *found = result == HIT ? Py_NewRef(entry) : NULL;
    Py_DECREF(entries);
    return result;
}

/* Number the hit, as Table.find does: the table learns from it how many there were and which keys were used last. */
static int number_hit(const FastPath *path, PyObject *slot)
{
    PyObject *number = Py_TYPE(path->numbers)->tp_iternext(path->numbers), *before = field(slot, path->used_at);
    if (number == NULL)
        return 0;
    memcpy((char *)slot + path->used_at, &number, sizeof number);
    Py_XDECREF(before);
    return 1;
}

static PyObject *run_entry(const FastPath *path, PyObject *entry, PyObject *args, PyObject *kwargs)
{
    PyObject *run = Py_NewRef(run_of(path, entry));     /* the table may let the build go while it runs */
    int retry = field(entry, path->retry_at) == Py_True;
    PyObject *answer = call_with(run, args, kwargs);
    if (answer == NULL && retry && PyErr_ExceptionMatches(PyExc_Exception))
        answer = fall_back(path->fallback, args, kwargs);
    Py_DECREF(run);
    return answer;
}

/* Whether a call whose key is not known is run plain without more ado, as those are of which there were too many. */
static int spare(FastPath *path, int firsts, PyObject *args, PyObject *kwargs, const CacheNode *node, PyObject **answer)
{
    if (path->to_spare <= 0 || (path->most_sights > 0) != firsts || path->plain == NULL || node == NULL || node->slot != NULL
        || !may_vary() || (firsts && !is_first_sight(&path->sights, path->most_sights, node->hash)))
        return 0;
    path->to_spare--;
    path->spared++;
    *answer = call_with(path->plain, args, kwargs);
    return 1;
}

/* A new call whose kin have come to what runs it: published, unless it passes, and counted as a miss; not as a hit, too. */
static Result admit(FastPath *path, PyObject *args, PyObject *kwargs, CacheNode *node, PyObject **entry)
{
    CallSignature sig;
    if (path->kin.held == 0 || !path->sign(path, &sig, args, kwargs))
        return MISS;
    int passes = path->to_pass > 0 && may_vary() && is_first_sight(&path->sights, path->most_sights, node->hash);
    path->to_pass -= passes;
    path->passed += passes;
    PyObject *fresh = passes ? Py_None : (PyObject *)node;
    PyObject *callable = find_kin(&path->kin, &sig, args, kwargs), *call[] = {args, kwargs, fresh};
    if (callable == NULL)
        return MISS;
    PyObject *found = PyObject_Vectorcall(callable, call, 3, NULL);
    Py_DECREF(callable);
    if (found == NULL && !PyErr_ExceptionMatches(PyExc_Exception))
        return RAISED;
    PyErr_Clear();          /* Python decides, and knows what to do */
    if (found != NULL && Py_IS_TYPE(found, (PyTypeObject *)path->entry_type) && run_of(path, found) != NULL) {
        *entry = found;
        return HIT;
    }
    Py_XDECREF(found);
    return MISS;
}

/* The law. A node is found also where there is no hit: the table may learn of its call. */
static Result hit(FastPath *path, PyObject *args, PyObject *kwargs, CacheNode **node, PyObject **answer)
{
    *node = path->off ? NULL : lookup(path, args, kwargs);          /* 1 off, 2 no modes, 3 sign, 4 look up */
    if (*node == NULL || ((*node)->slot != NULL && path->left > 0 && --path->left == 0))
        return MISS;
    if (spare(path, 1, args, kwargs, *node, answer))
        return HIT;
    PyObject *slot = Py_XNewRef((*node)->slot), *entry = NULL;
    Result result = slot == NULL ? admit(path, args, kwargs, *node, &entry)
                                 : entry_for(path, slot, args, kwargs, &entry);     /* 5 guards */
    if (slot != NULL && result == HIT && !number_hit(path, slot))
        result = RAISED;
    Py_XDECREF(slot);
    if (result == HIT)
        *answer = run_entry(path, entry, args, kwargs);             /* 6 run */
    Py_XDECREF(entry);
    return result;
}

static PyObject *miss(const FastPath *path, PyObject *args, PyObject *kwargs, CacheNode *node)
{
    if (path->cache_miss == NULL)       /* the collector has cleared it, and what goes with it calls it once more */
        return PyErr_Format(PyExc_RuntimeError, "the dispatcher of this path is being collected");
    /* A node that has a slot already is no news for the table. */
    PyObject *fresh = node != NULL && node->slot == NULL ? (PyObject *)node : Py_None;
    PyObject *call[] = {args, kwargs, fresh};
    return PyObject_Vectorcall(path->cache_miss, call, 3, NULL);
}

static PyObject *fast_path_vectorcall(PyObject *self, PyObject *const *call, size_t flags, PyObject *names)
{
    if (PyVectorcall_NARGS(flags) != 2 || names != NULL)
        return PyErr_Format(PyExc_TypeError, "a path takes the arguments of a call as a tuple and a dict");
    FastPath *path = (FastPath *)self;
    CacheNode *node = NULL;
    PyObject *answer = NULL;
    if (hit(path, call[0], call[1], &node, &answer) == MISS && !spare(path, 0, call[0], call[1], node, &answer))
        answer = miss(path, call[0], call[1], node);
    Py_XDECREF(node);
    return answer;
}

/* ---------------------------------------------------------------------------------------- what the table asks of it */

PyDoc_STRVAR(find_doc, "find(args, kwargs, /)\n--\n\n"
    "The table's slot for this call, or None; nothing is counted or run.");

static PyObject *fast_path_find(PyObject *self, PyObject *const *call, Py_ssize_t count)
{
    if (count != 2)
        return PyErr_Format(PyExc_TypeError, "find takes args and kwargs");
    CacheNode *node = lookup((FastPath *)self, call[0], call[1]);
    PyObject *slot = Py_NewRef(node == NULL || node->slot == NULL ? Py_None : node->slot);
    Py_XDECREF(node);
    return slot;
}

/* Whether the call is signed as it was when the node was made, and no other node has its place. */
static int is_signed_as(const FastPath *path, const CacheNode *node, PyObject *args, PyObject *kwargs)
{
    CallSignature sig;
    if (!path->sign(path, &sig, args, kwargs))
        return 0;
    uint64_t hash = hash_of(&sig);
    int same = node_is_of(node, &sig, hash) && find_node(&path->cache, &sig, hash) == NULL;
    drop_objects(&sig);
    return same;
}

PyDoc_STRVAR(insert_doc, "insert(node, slot, args, kwargs, overlap, /)\n--\n\n"
    "Let calls that are signed as this one find the slot; whether that was done.\n\n"
    "The node was made of the call before the Python path made its key. The call is signed again here: if both agree,\n"
    "nothing has changed in between, and the key is of the same state as the node.");

static PyObject *fast_path_insert(PyObject *self, PyObject *const *call, Py_ssize_t count)
{
    FastPath *path = (FastPath *)self;
    if (count != 5 || !Py_IS_TYPE(call[0], &CacheNodeType) || (PyObject *)Py_TYPE(call[1]) != path->slot_type
        || path->numbers == NULL)
        return PyErr_Format(PyExc_TypeError, "insert takes a node, a slot, args, kwargs and overlap");
    CacheNode *node = (CacheNode *)call[0];
    int before = path->overlap;
    path->overlap = call[4] == Py_True;
    if (path->overlap != before)
        remove_all_nodes(&path->cache);     /* keys of another form make every node wrong */
    if (node->slot != NULL || !is_signed_as(path, node, call[2], call[3]))
        Py_RETURN_FALSE;
    return insert_node(&path->cache, node, call[1]) ? Py_NewRef(Py_True) : NULL;
}

PyDoc_STRVAR(expect_doc, "expect(node, callable, args, kwargs, /)\n--\n\n"
    "Let calls that differ from this one in sizes alone, and lie in the same octaves, be answered by what\n"
    "`callable(args, kwargs, node)` gives, the first time: an entry, or None; whether that was done. A node that is\n"
    "None stands for a call that is not to be published.\n\n"
    "As `insert` does, it asks whether the call is still signed as when the node was made.");

static PyObject *fast_path_expect(PyObject *self, PyObject *const *call, Py_ssize_t count)
{
    FastPath *path = (FastPath *)self;
    if (count != 4 || !Py_IS_TYPE(call[0], &CacheNodeType))
        return PyErr_Format(PyExc_TypeError, "expect takes a node, a callable, args and kwargs");
    CallSignature sig;
    int done = 0;
    if (path->sign(path, &sig, call[2], call[3])) {
        done = is_signed_so((CacheNode *)call[0], &sig) ? insert_kin(&path->kin, &sig, call[2], call[3], call[1]) : 0;
        drop_objects(&sig);
    }
    return done < 0 ? NULL : PyBool_FromLong(done);
}

PyDoc_STRVAR(remove_doc, "remove(node, /)\n--\n\nLet no call find this node's slot any more.");

static PyObject *fast_path_remove(PyObject *self, PyObject *node)
{
    if (!Py_IS_TYPE(node, &CacheNodeType))
        return PyErr_Format(PyExc_TypeError, "remove takes a node");
    remove_node(&((FastPath *)self)->cache, (CacheNode *)node);
    Py_RETURN_NONE;
}

PyDoc_STRVAR(clear_doc, "clear(/)\n--\n\nLet no call find any slot any more.");

static PyObject *fast_path_remove_all(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    remove_all_nodes(&((FastPath *)self)->cache);
    remove_all_nodes(&((FastPath *)self)->kin);
    ((FastPath *)self)->to_spare = ((FastPath *)self)->to_pass = 0;
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

PyDoc_STRVAR(read_doc, "read(slot_type, entry_type, /)\n--\n\n"
    "Learn where slots keep `entries` and `used`, and entries `run`, `check` and `retry`; raises TypeError.");

static PyObject *fast_path_read(PyObject *self, PyObject *const *types, Py_ssize_t count)
{
    if (count != 2 || !PyType_Check(types[0]) || !PyType_Check(types[1]))
        return PyErr_Format(PyExc_TypeError, "read takes the types of slots and of entries");
    FastPath *path = (FastPath *)self;
    PyTypeObject *slot = (PyTypeObject *)types[0], *entry = (PyTypeObject *)types[1];
    if ((path->entries_at = field_at(slot, "entries")) < 0 || (path->used_at = field_at(slot, "used")) < 0
        || (path->run_at = field_at(entry, "run")) < 0 || (path->check_at = field_at(entry, "check")) < 0
        || (path->retry_at = field_at(entry, "retry")) < 0)
        return NULL;
    Py_XSETREF(path->slot_type, Py_NewRef(types[0]));
    Py_XSETREF(path->entry_type, Py_NewRef(types[1]));
    Py_RETURN_NONE;
}

/* ----------------------------------------------------------------------------------------------- the path as a type */

static int sign_function_call(const FastPath *path, CallSignature *sig, PyObject *args, PyObject *kwargs)
{
    return sign_call(sig, args, kwargs, path->receiver, path->overlap);
}

static PyObject *fast_path_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"cache_miss", "fallback", "receiver", "plain", NULL};
    PyObject *cache_miss, *fallback, *plain = NULL;
    int receiver = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO|pO", names, &cache_miss, &fallback, &receiver, &plain))
        return NULL;
    FastPath *path = (FastPath *)type->tp_alloc(type, 0);
    if (path == NULL)
        return NULL;
    path->vectorcall = fast_path_vectorcall;
    path->sign = sign_function_call;
    path->cache_miss = Py_NewRef(cache_miss);
    path->fallback = Py_NewRef(fallback);
    path->plain = Py_XNewRef(plain);
    path->receiver = (char)receiver;
    if (!start_cache(&path->cache) || !start_cache(&path->kin))
        Py_CLEAR(path);
    return (PyObject *)path;
}

static int fast_path_traverse(PyObject *self, visitproc visit, void *arg)
{
    FastPath *path = (FastPath *)self;
    int stop = visit_nodes(&path->cache, visit, arg);
    stop = stop ? stop : visit_nodes(&path->kin, visit, arg);
    return stop ? stop : visit_references(REFERENCES(path, cache_miss, entry_type), visit, arg);
}

static int fast_path_clear(PyObject *self)
{
    FastPath *path = (FastPath *)self;
    remove_all_nodes(&path->cache);
    remove_all_nodes(&path->kin);
    clear_references(REFERENCES(path, cache_miss, entry_type));
    return 0;
}

/* Of a kernel's path, too. */
static void fast_path_dealloc(PyObject *self)
{
    PyObject_GC_UnTrack(self);
    Py_TYPE(self)->tp_clear(self);
    PyMem_Free(((FastPath *)self)->cache.places);
    PyMem_Free(((FastPath *)self)->kin.places);
    PyMem_Free(((FastPath *)self)->sights);
    Py_TYPE(self)->tp_free(self);
}

static PyMethodDef fast_path_methods[] = {
    {"find", (PyCFunction)(void (*)(void))fast_path_find, METH_FASTCALL, find_doc},
    {"insert", (PyCFunction)(void (*)(void))fast_path_insert, METH_FASTCALL, insert_doc},
    {"expect", (PyCFunction)(void (*)(void))fast_path_expect, METH_FASTCALL, expect_doc},
    {"remove", fast_path_remove, METH_O, remove_doc},
    {"clear", fast_path_remove_all, METH_NOARGS, clear_doc},
    {"number", fast_path_number, METH_O, number_doc},
    {"read", (PyCFunction)(void (*)(void))fast_path_read, METH_FASTCALL, read_doc},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef fast_path_members[] = {
    {"off", Py_T_BOOL, offsetof(FastPath, off), 0, "whether every call takes the Python path"},
    {"frozen", Py_T_BOOL, offsetof(FastPath, frozen), 0, "whether nothing may be timed"},
    {"left", Py_T_PYSSIZET, offsetof(FastPath, left), 0, "after how many calls one goes to Python; 0 for never"},
    {"to_spare", Py_T_PYSSIZET, offsetof(FastPath, to_spare), 0, "how many calls of keys that are not known run plain"},
    {"most_sights", Py_T_PYSSIZET, offsetof(FastPath, most_sights), 0, "of how many it is known that they were seen"},
    {"spared", Py_T_PYSSIZET, offsetof(FastPath, spared), Py_READONLY, "how many have"},
    {"to_pass", Py_T_PYSSIZET, offsetof(FastPath, to_pass), 0, "how many are answered as their kin, and not published"},
    {"passed", Py_T_PYSSIZET, offsetof(FastPath, passed), Py_READONLY, "how many were"},
    {"held", Py_T_PYSSIZET, offsetof(FastPath, cache.held), Py_READONLY, "how many calls are in the cache"},
    {"__vectorcalloffset__", Py_T_PYSSIZET, offsetof(FastPath, vectorcall), Py_READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyTypeObject FastPathType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "shapedispatch.hit._native.FastPath",
    .tp_doc = "FastPath(cache_miss, fallback, receiver=False, plain=None)\n--\n\n"
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
