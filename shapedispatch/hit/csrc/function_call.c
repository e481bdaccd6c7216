/* The hit path of one dispatcher: from a packed call to the slot that the table keeps for it, and the run. */

/* -------------------------------------------------------------------------------------- a packed call, and its slot */

typedef union {
    uint64_t word;
    PyObject *object;
} Cell;

typedef struct Link {
    PyObject_VAR_HEAD
    uint64_t hash;
    PyObject *slot;                     /* the table's; NULL before linking and after unlinking */
    struct Link *next_leaving;
    int word_count, object_count;
    Cell cells[1];                      /* first the words, then the objects */
} Link;

static int link_traverse(PyObject *self, visitproc visit, void *arg)
{
    Link *link = (Link *)self;
    Py_VISIT(link->slot);
    for (int i = 0; i < link->object_count; i++)
        Py_VISIT(link->cells[link->word_count + i].object);
    return 0;
}

static int link_clear(PyObject *self)
{
    Link *link = (Link *)self;
    Py_CLEAR(link->slot);
    while (link->object_count > 0)
        Py_DECREF(link->cells[link->word_count + --link->object_count].object);
    return 0;
}

static void link_dealloc(PyObject *self)
{
    PyObject_GC_UnTrack(self);
    link_clear(self);
    PyObject_GC_Del(self);
}

static PyTypeObject LinkType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "shapedispatch.hit._native.Link",
    .tp_doc = "A packed call, and the table's slot for it.",
    .tp_basicsize = offsetof(Link, cells),
    .tp_itemsize = sizeof(Cell),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_dealloc = link_dealloc,
    .tp_traverse = link_traverse,
    .tp_clear = link_clear,
};

/* A link without a slot; it takes over the pack's objects. NULL with an error set. */
static Link *new_link(Pack *pack, uint64_t hash)
{
    Link *link = PyObject_GC_NewVar(Link, &LinkType, pack->word_count + pack->object_count);
    if (link == NULL)
        return NULL;
    link->hash = hash;
    link->slot = NULL;
    link->word_count = pack->word_count;
    link->object_count = pack->object_count;
    memcpy(link->cells, pack->words, (size_t)pack->word_count * sizeof(Cell));
    memcpy(link->cells + pack->word_count, pack->objects, (size_t)pack->object_count * sizeof(Cell));
    pack->object_count = 0;
    PyObject_GC_Track(link);
    return link;
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

static int link_is_of(const Link *link, const Pack *pack, uint64_t hash)
{
    if (link->hash != hash || link->word_count != pack->word_count || link->object_count != pack->object_count)
        return 0;
    if (memcmp(link->cells, pack->words, (size_t)pack->word_count * sizeof(Cell)) != 0)
        return 0;
    for (int i = 0; i < pack->object_count; i++)
        if (!same_object(link->cells[link->word_count + i].object, pack->objects[i]))
            return 0;
    return 1;
}

/* --------------------------------------------------------------------------------------------------------- the road */

typedef struct Road {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    int (*packs)(const struct Road *road, Pack *pack, PyObject *args, PyObject *kwargs);    /* as pack_call */
    PyObject *python_road;              /* python_road(args, kwargs, link or None): the same call in Python */
    PyObject *instead;                  /* instead(*args, **kwargs): where a build has raised that may be retried */
    char receiver, off;
    int overlap;                        /* whether the keys of the linked slots hold which arguments overlap */
    PyTypeObject *slot_type, *entry_type;
    Py_ssize_t entries_at, used_at, run_at, check_at, retry_at;
    PyObject *numbers;                  /* an iterator: the table's numbers of hits */
    Link **places;                      /* open addressing, linear probing; at most half full */
    size_t room, held;
} Road;

enum { SMALLEST_ROOM = 8 };

static int pack_for(const Road *road, Pack *pack, PyObject *args, PyObject *kwargs)
{
    return pack_call(pack, args, kwargs, road->receiver, road->overlap);
}

/* The place of this packed call, or the free place where it would stand. */
static size_t place_of(const Road *road, const Pack *pack, uint64_t hash)
{
    size_t place = hash & (road->room - 1);
    while (road->places[place] != NULL && !link_is_of(road->places[place], pack, hash))
        place = (place + 1) & (road->room - 1);
    return place;
}

static size_t free_place(Link **places, size_t room, uint64_t hash)
{
    size_t place = hash & (room - 1);
    while (places[place] != NULL)
        place = (place + 1) & (room - 1);
    return place;
}

/* 0 with an error set where memory is out; nothing has changed then. */
static int make_room(Road *road)
{
    if (2 * (road->held + 1) <= road->room)
        return 1;
    size_t room = 2 * road->room;
    Link **places = PyMem_Calloc(room, sizeof *places);
    if (places == NULL) {
        PyErr_NoMemory();
        return 0;
    }
    for (size_t i = 0; i < road->room; i++)
        if (road->places[i] != NULL)
            places[free_place(places, room, road->places[i]->hash)] = road->places[i];
    PyMem_Free(road->places);
    road->places = places;
    road->room = room;
    return 1;
}

/* Free a place and move up what had to give way to it, so that every probe still ends at a free place. */
static void vacate(Road *road, size_t gap)
{
    size_t mask = road->room - 1;
    for (size_t place = (gap + 1) & mask; road->places[place] != NULL; place = (place + 1) & mask) {
        size_t home = road->places[place]->hash & mask;
        if (((place - home) & mask) >= ((place - gap) & mask)) {
            road->places[gap] = road->places[place];
            gap = place;
        }
    }
    road->places[gap] = NULL;
    road->held--;
}

static void take_out(Road *road, Link *link)
{
    size_t place = link->hash & (road->room - 1);
    while (road->places[place] != NULL && road->places[place] != link)
        place = (place + 1) & (road->room - 1);
    if (road->places[place] == NULL)
        return;
    vacate(road, place);
    Py_CLEAR(link->slot);
    Py_DECREF(link);
}

/* Links first leave the road and are let go afterwards: letting go may run code that comes back here. */
static void unlink_all(Road *road)
{
    Link *leaving = NULL;
    for (size_t place = 0; place < road->room; place++)
        if (road->places[place] != NULL) {
            road->places[place]->next_leaving = leaving;
            leaving = road->places[place];
            road->places[place] = NULL;
        }
    road->held = 0;
    while (leaving != NULL) {
        Link *link = leaving;
        leaving = link->next_leaving;
        Py_CLEAR(link->slot);
        Py_DECREF(link);
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

/* The link of a packed call, or a fresh one without a slot; NULL where memory is out. The pack's objects are let go. */
static Link *link_of(const Road *road, Pack *pack)
{
    uint64_t hash = hash_of(pack);
    Link *link = road->places[place_of(road, pack, hash)];
    Py_XINCREF(link);
    if (link == NULL && (link = new_link(pack, hash)) == NULL)
        PyErr_Clear();
    drop_objects(pack);
    return link;
}

/* The link of a call; NULL where C cannot judge it. No error is set. */
static Link *look(const Road *road, PyObject *args, PyObject *kwargs)
{
    Pack pack;
    return road->packs(road, &pack, args, kwargs) ? link_of(road, &pack) : NULL;
}

/* Whether an entry has a build whose guards hold now; -1 with an error set where asking raised. */
static int serves(const Road *road, PyObject *entry, PyObject *args, PyObject *kwargs)
{
    PyObject *run = field(entry, road->run_at), *check = field(entry, road->check_at);
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
static PyObject *serving_entry(const Road *road, PyObject *slot, PyObject *args, PyObject *kwargs)
{
    PyObject *entries = field(slot, road->entries_at), *found = NULL;
    if (entries == NULL || !PyTuple_CheckExact(entries))
        return NULL;
    Py_INCREF(entries);     /* asking an entry's guards may publish another */
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(entries) && found == NULL; i++) {
        PyObject *entry = PyTuple_GET_ITEM(entries, i);
        int serving = Py_TYPE(entry) == road->entry_type ? serves(road, entry, args, kwargs) : 0;
        if (serving < 0)
            break;
        found = serving ? entry : NULL;
    }
    Py_XINCREF(found);
    Py_DECREF(entries);
    return found;
}

/* Number the hit, as Table.find does: the table learns from it how many there were and which keys were used last. */
static int number_hit(const Road *road, PyObject *slot)
{
    PyObject *number = Py_TYPE(road->numbers)->tp_iternext(road->numbers), *before = field(slot, road->used_at);
    if (number == NULL)
        return 0;
    memcpy((char *)slot + road->used_at, &number, sizeof number);
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
static PyObject *instead(const Road *road, PyObject *args, PyObject *kwargs)
{
    PyObject *before = PyErr_GetHandledException(), *error = take_raised();
    PyErr_SetHandledException(error);
    PyObject *answer = call_with(road->instead, args, kwargs);
    PyErr_SetHandledException(before);
    Py_XDECREF(before);
    Py_XDECREF(error);
    return answer;
}

static PyObject *run_entry(const Road *road, PyObject *entry, PyObject *args, PyObject *kwargs)
{
    PyObject *run = field(entry, road->run_at);
    int retry = field(entry, road->retry_at) == Py_True;
    Py_INCREF(run);         /* the table may let the build go while it runs */
    PyObject *answer = call_with(run, args, kwargs);
    if (answer == NULL && retry && PyErr_ExceptionMatches(PyExc_Exception))
        answer = instead(road, args, kwargs);
    Py_DECREF(run);
    return answer;
}

/* The entry for this call by a known link, counted; NULL where there is none, with an error set where asking raised. */
static PyObject *hit_entry(const Road *road, const Link *link, PyObject *args, PyObject *kwargs)
{
    if (link == NULL || link->slot == NULL)
        return NULL;
    PyObject *slot = Py_NewRef(link->slot);
    PyObject *entry = serving_entry(road, slot, args, kwargs);
    /* Its build may have been lost while the guards were asked. */
    if (entry != NULL && (field(entry, road->run_at) == Py_None || !number_hit(road, slot)))
        Py_CLEAR(entry);
    Py_DECREF(slot);
    return entry;
}

static PyObject *by_python(const Road *road, PyObject *args, PyObject *kwargs, Link *link)
{
    if (road->python_road == NULL)      /* the collector has cleared it, and what goes with it calls it once more */
        return PyErr_Format(PyExc_RuntimeError, "the dispatcher of this road is being collected");
    /* A link that has a slot already is no news for the table. */
    PyObject *fresh = link != NULL && link->slot == NULL ? (PyObject *)link : Py_None;
    PyObject *call[] = {args, kwargs, fresh};
    return PyObject_Vectorcall(road->python_road, call, 3, NULL);
}

static PyObject *road_vectorcall(PyObject *self, PyObject *const *call, size_t flags, PyObject *names)
{
    Road *road = (Road *)self;
    if (PyVectorcall_NARGS(flags) != 2 || names != NULL)
        return PyErr_Format(PyExc_TypeError, "a road takes the arguments of a call as a tuple and a dict");
    PyObject *args = call[0], *kwargs = call[1];
    Link *link = road->off ? NULL : look(road, args, kwargs);
    PyObject *entry = hit_entry(road, link, args, kwargs), *answer = NULL;
    if (entry != NULL) {
        Py_XDECREF(link);
        answer = run_entry(road, entry, args, kwargs);
        Py_DECREF(entry);
        return answer;
    }
    if (!PyErr_Occurred())
        answer = by_python(road, args, kwargs, link);
    Py_XDECREF(link);
    return answer;
}

/* ---------------------------------------------------------------------------------------- what the table asks of it */

PyDoc_STRVAR(find_doc, "find(args, kwargs, /)\n--\n\n"
    "The slot linked to this call, or None; nothing is counted or run.");

static PyObject *road_find(PyObject *self, PyObject *const *call, Py_ssize_t count)
{
    if (count != 2)
        return PyErr_Format(PyExc_TypeError, "find takes args and kwargs");
    Road *road = (Road *)self;
    Pack pack;
    PyObject *slot = NULL;
    if (road->packs(road, &pack, call[0], call[1])) {
        Link *link = road->places[place_of(road, &pack, hash_of(&pack))];
        slot = link == NULL ? NULL : link->slot;
        Py_XINCREF(slot);
        drop_objects(&pack);
    }
    if (slot == NULL)
        Py_RETURN_NONE;
    return slot;
}

/* Keys of another form make every link wrong. */
static void set_overlap(Road *road, int overlap)
{
    if (road->overlap == overlap)
        return;
    road->overlap = overlap;
    unlink_all(road);
}

/* Whether the call packs as it did when the link was made, and nothing stands in the link's place. */
static int still_packs_as(const Road *road, const Link *link, PyObject *args, PyObject *kwargs)
{
    Pack pack;
    if (!road->packs(road, &pack, args, kwargs))
        return 0;
    uint64_t hash = hash_of(&pack);
    int same = link_is_of(link, &pack, hash) && road->places[place_of(road, &pack, hash)] == NULL;
    drop_objects(&pack);
    return same;
}

PyDoc_STRVAR(link_doc, "link(link, slot, args, kwargs, overlap, /)\n--\n\n"
    "Let calls that pack as this one find the slot; whether that was done.\n\n"
    "The link was made of the call before the Python road made its key. The call is packed again here: if both agree,\n"
    "nothing has changed in between, and the key is of the same state as the link.");

static PyObject *road_link(PyObject *self, PyObject *const *call, Py_ssize_t count)
{
    Road *road = (Road *)self;
    if (count != 5 || Py_TYPE(call[0]) != &LinkType || Py_TYPE(call[1]) != road->slot_type || road->numbers == NULL)
        return PyErr_Format(PyExc_TypeError, "link takes a link, a slot, args, kwargs and overlap");
    Link *link = (Link *)call[0];
    set_overlap(road, call[4] == Py_True);
    if (link->slot != NULL || !still_packs_as(road, link, call[2], call[3]))
        Py_RETURN_FALSE;
    if (!make_room(road))
        return NULL;
    road->places[free_place(road->places, road->room, link->hash)] = link;
    road->held++;
    Py_INCREF(link);
    Py_INCREF(call[1]);
    link->slot = call[1];
    Py_RETURN_TRUE;
}

PyDoc_STRVAR(unlink_doc, "unlink(link, /)\n--\n\nNo call finds this link's slot any more.");

static PyObject *road_unlink(PyObject *self, PyObject *link)
{
    if (Py_TYPE(link) != &LinkType)
        return PyErr_Format(PyExc_TypeError, "unlink takes a link");
    take_out((Road *)self, (Link *)link);
    Py_RETURN_NONE;
}

PyDoc_STRVAR(clear_doc, "clear(/)\n--\n\nNo call finds any slot any more.");

static PyObject *road_clear_method(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    unlink_all((Road *)self);
    Py_RETURN_NONE;
}

PyDoc_STRVAR(number_doc, "number(numbers, /)\n--\n\nTake the numbers of hits from this iterator.");

static PyObject *road_number(PyObject *self, PyObject *numbers)
{
    if (!PyIter_Check(numbers))
        return PyErr_Format(PyExc_TypeError, "number takes an iterator");
    Py_XSETREF(((Road *)self)->numbers, Py_NewRef(numbers));
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

static PyObject *road_read(PyObject *self, PyObject *const *types, Py_ssize_t count)
{
    if (count != 2 || !PyType_Check(types[0]) || !PyType_Check(types[1]))
        return PyErr_Format(PyExc_TypeError, "read takes the types of slots and of entries");
    Road *road = (Road *)self;
    PyTypeObject *slot = (PyTypeObject *)types[0], *entry = (PyTypeObject *)types[1];
    if ((road->entries_at = field_at(slot, "entries")) < 0 || (road->used_at = field_at(slot, "used")) < 0
        || (road->run_at = field_at(entry, "run")) < 0 || (road->check_at = field_at(entry, "check")) < 0
        || (road->retry_at = field_at(entry, "retry")) < 0)
        return NULL;
    Py_XSETREF(road->slot_type, (PyTypeObject *)Py_NewRef(types[0]));
    Py_XSETREF(road->entry_type, (PyTypeObject *)Py_NewRef(types[1]));
    Py_RETURN_NONE;
}

/* ----------------------------------------------------------------------------------------------- the road as a type */

static Road *empty_road(PyTypeObject *type)
{
    Road *road = (Road *)type->tp_alloc(type, 0);
    if (road == NULL)
        return NULL;
    road->places = PyMem_Calloc(SMALLEST_ROOM, sizeof *road->places);
    if (road->places == NULL) {
        Py_DECREF(road);
        PyErr_NoMemory();
        return NULL;
    }
    road->room = SMALLEST_ROOM;
    return road;
}

static PyObject *road_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"python_road", "instead", "receiver", NULL};
    PyObject *python_road, *instead;
    int receiver = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO|p", names, &python_road, &instead, &receiver))
        return NULL;
    Road *road = empty_road(type);
    if (road == NULL)
        return NULL;
    road->vectorcall = road_vectorcall;
    road->packs = pack_for;
    road->python_road = Py_NewRef(python_road);
    road->instead = Py_NewRef(instead);
    road->receiver = (char)receiver;
    return (PyObject *)road;
}

static int road_traverse(PyObject *self, visitproc visit, void *arg)
{
    Road *road = (Road *)self;
    Py_VISIT(road->python_road);
    Py_VISIT(road->instead);
    Py_VISIT(road->numbers);
    Py_VISIT(road->slot_type);
    Py_VISIT(road->entry_type);
    for (size_t i = 0; i < road->room; i++)
        Py_VISIT(road->places[i]);
    return 0;
}

static int road_clear(PyObject *self)
{
    Road *road = (Road *)self;
    unlink_all(road);
    Py_CLEAR(road->numbers);
    Py_CLEAR(road->python_road);
    Py_CLEAR(road->instead);
    Py_CLEAR(road->slot_type);
    Py_CLEAR(road->entry_type);
    return 0;
}

static void road_dealloc(PyObject *self)
{
    PyObject_GC_UnTrack(self);
    road_clear(self);
    PyMem_Free(((Road *)self)->places);
    Py_TYPE(self)->tp_free(self);
}

static PyMethodDef road_methods[] = {
    {"find", (PyCFunction)(void (*)(void))road_find, METH_FASTCALL, find_doc},
    {"link", (PyCFunction)(void (*)(void))road_link, METH_FASTCALL, link_doc},
    {"unlink", road_unlink, METH_O, unlink_doc},
    {"clear", road_clear_method, METH_NOARGS, clear_doc},
    {"number", road_number, METH_O, number_doc},
    {"read", (PyCFunction)(void (*)(void))road_read, METH_FASTCALL, read_doc},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef road_members[] = {
    {"off", T_BOOL, offsetof(Road, off), 0, "whether every call takes the Python road"},
    {"held", T_PYSSIZET, offsetof(Road, held), READONLY, "how many calls are linked"},
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Road, vectorcall), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyTypeObject RoadType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "shapedispatch.hit._native.Road",
    .tp_doc = "Road(python_road, instead, receiver=False)\n--\n\n"
              "The hit path of one dispatcher: road(args, kwargs) runs what the table holds for this call.",
    .tp_basicsize = sizeof(Road),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_new = road_new,
    .tp_dealloc = road_dealloc,
    .tp_traverse = road_traverse,
    .tp_clear = road_clear,
    .tp_call = PyVectorcall_Call,
    .tp_vectorcall_offset = offsetof(Road, vectorcall),
    .tp_methods = road_methods,
    .tp_members = road_members,
};
