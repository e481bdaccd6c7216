/* Signed calls, each with the slot that the Python table keeps for it: a hash table of nodes. And another, of what
 * answers the next new call of many that differ in sizes alone. */

/* ----------------------------------------------------------------------------------------------------- a node of it */

typedef union {
    uint64_t word;
    PyObject *object;
} Cell;

typedef struct CacheNode {
    PyObject_VAR_HEAD
    uint64_t hash;
    PyObject *slot;                     /* the table's; NULL while the node is in no cache */
    struct CacheNode *next_removed;
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

static PyTypeObject CacheNodeType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "shapedispatch.hit._native.CacheNode",
    .tp_doc = "A signed call, and the table's slot for it.",
    .tp_basicsize = offsetof(CacheNode, cells),
    .tp_itemsize = sizeof(Cell),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_dealloc = clear_and_free,
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

static uint64_t hash_of(const CallSignature *sig)
{
    uint64_t hash = (uint64_t)sig->word_count;
    for (int i = 0; i < sig->word_count; i++) {
        hash = (hash ^ sig->words[i]) * 0x9E3779B97F4A7C15u;
        hash ^= hash >> 32;
    }
    return hash;
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

static int is_signed_so(const CacheNode *node, const CallSignature *sig)
{
    if (node->word_count != sig->word_count || node->object_count != sig->object_count
        || memcmp(node->cells, sig->words, (size_t)sig->word_count * sizeof(Cell)) != 0)
        return 0;
    for (int i = 0; i < sig->object_count; i++)
        if (!same_object(node->cells[node->word_count + i].object, sig->objects[i]))
            return 0;
    return 1;
}

static int node_is_of(const CacheNode *node, const CallSignature *sig, uint64_t hash)
{
    return node->hash == hash && is_signed_so(node, sig);
}

/* -------------------------------------------------------------------------------------------------------- the cache */

typedef struct {
    CacheNode **places;                 /* open addressing, linear probing; at most half full */
    size_t room, held;
    CacheNode *latest;                  /* that was found, borrowed: most calls are the last one again */
} SignatureCache;

enum { SMALLEST_ROOM = 8 };

/* 0 with an error set where memory is out. */
static int start_cache(SignatureCache *cache)
{
    cache->places = PyMem_Calloc(SMALLEST_ROOM, sizeof *cache->places);
    cache->room = cache->places == NULL ? 0 : SMALLEST_ROOM;
    return cache->room != 0 || PyErr_NoMemory() != NULL;
}

/* The node of this signed call, borrowed; NULL where there is none. */
static CacheNode *find_node(const SignatureCache *cache, const CallSignature *sig, uint64_t hash)
{
    size_t place = hash & (cache->room - 1);
    while (cache->places[place] != NULL && !node_is_of(cache->places[place], sig, hash))
        place = (place + 1) & (cache->room - 1);
    return cache->places[place];
}

/* The same or a fresh one without a slot, as a new reference; NULL where memory is out. The signature's objects are let
 * go. */
static CacheNode *node_of(SignatureCache *cache, CallSignature *sig)
{
    uint64_t hash;
    CacheNode *node = cache->latest;
    if (node == NULL || !is_signed_so(node, sig)) {
        hash = hash_of(sig);
        node = find_node(cache, sig, hash);
    }
    if (node != NULL)
        cache->latest = (CacheNode *)Py_NewRef(node);
    else if ((node = new_node(sig, hash)) == NULL)
        PyErr_Clear();
    drop_objects(sig);
    return node;
}

/* Where this node is, or the first free place for its hash; of NULL always the latter. */
static size_t place_of(CacheNode **places, size_t room, uint64_t hash, const CacheNode *node)
{
    size_t place = hash & (room - 1);
    while (places[place] != NULL && places[place] != node)
        place = (place + 1) & (room - 1);
    return place;
}

/* 0 with an error set where memory is out; nothing has changed then. */
static int make_room(SignatureCache *cache)
{
    if (2 * (cache->held + 1) <= cache->room)
        return 1;
    size_t room = 2 * cache->room;
    CacheNode **places = PyMem_Calloc(room, sizeof *places);
    if (places == NULL)
        return PyErr_NoMemory() != NULL;
    for (size_t i = 0; i < cache->room; i++)
        if (cache->places[i] != NULL)
            places[place_of(places, room, cache->places[i]->hash, NULL)] = cache->places[i];
    PyMem_Free(cache->places);
    cache->places = places;
    cache->room = room;
    return 1;
}

/* Of a call that has no node there; 0 with an error set where memory is out. */
static int insert_node(SignatureCache *cache, CacheNode *node, PyObject *slot)
{
    if (!make_room(cache))
        return 0;
    cache->places[place_of(cache->places, cache->room, node->hash, NULL)] = (CacheNode *)Py_NewRef(node);
    cache->held++;
    node->slot = Py_NewRef(slot);
    return 1;
}

/* Free a place and move up what had to give way to it, so that every probe still ends at a free place. */
static void vacate(SignatureCache *cache, size_t gap)
{
    size_t mask = cache->room - 1;
    for (size_t place = (gap + 1) & mask; cache->places[place] != NULL; place = (place + 1) & mask) {
        size_t home = cache->places[place]->hash & mask;
        if (((place - home) & mask) >= ((place - gap) & mask)) {
            cache->places[gap] = cache->places[place];
            gap = place;
        }
    }
    cache->places[gap] = NULL;
    cache->held--;
}

static void remove_node(SignatureCache *cache, CacheNode *node)
{
    size_t place = place_of(cache->places, cache->room, node->hash, node);
    if (cache->places[place] == NULL)
        return;
    vacate(cache, place);
    cache->latest = NULL;
    Py_CLEAR(node->slot);
    Py_DECREF(node);
}

static int visit_nodes(const SignatureCache *cache, visitproc visit, void *arg)
{
    for (size_t place = 0; place < cache->room; place++)
        Py_VISIT(cache->places[place]);
    return 0;
}

/* Nodes first leave the cache and are let go afterwards: letting go may run code that comes back here. */
static void remove_all_nodes(SignatureCache *cache)
{
    CacheNode *removed = NULL, *node;
    for (size_t place = 0; place < cache->room; place++)
        if ((node = cache->places[place]) != NULL) {
            node->next_removed = removed;
            removed = node;
            cache->places[place] = NULL;
        }
    cache->held = 0;
    cache->latest = NULL;
    while ((node = removed) != NULL) {
        removed = node->next_removed;
        Py_CLEAR(node->slot);
        Py_DECREF(node);
    }
}

/* --------------------------------------------------------------------------------- signed calls that were seen once */

enum { MOST_SIGHTS = 4096 };

/* Whether it may depend on the time that calls have taken what runs one: not where bits are to repeat. */
static int may_vary(void)
{
    uint64_t deterministic;
    return word_from(&torch.deterministic, &deterministic) && deterministic == 0;
}

/* Whether no call with this hash was seen lately, among so many (a power of two) that were asked about; now one was. */
static int is_first_sight(uint64_t **sights, Py_ssize_t most, uint64_t hash)
{
    if (most <= 0 || most > MOST_SIGHTS
        || (*sights == NULL && (*sights = PyMem_Calloc(MOST_SIGHTS, sizeof **sights)) == NULL))
        return 0;
    uint64_t *place = *sights + (hash & (uint64_t)(most - 1)), before = *place;
    *place = hash;
    return before != hash;
}

/* ----------------------------------------------------------------------- signed calls that differ in sizes alone */

enum { MOST_KIN = 1024 };

/* How many binary digits a size has, as int.bit_length gives it. */
static uint64_t octave_of(uint64_t size)
{
    uint64_t digits = 0;
    for (; size != 0; size >>= 1)
        digits++;
    return digits;
}

/* Leave of a tensor's sizes their octaves, and of its strides whether they fall, as layout.kin does. */
static void blur_sizes(uint64_t *words)
{
    int ndim = (int)(words[0] >> 32 & 0xff);
    uint64_t *sizes = words + BEFORE_SIZES, *strides = sizes + ndim, falling = 1;
    for (int i = 1; i < ndim; i++)
        falling &= (int64_t)strides[i - 1] >= (int64_t)strides[i];
    for (int i = 0; i < ndim; i++) {
        sizes[i] = octave_of(sizes[i]);
        strides[i] = falling;
    }
}

/* A signed call as all of its kin are signed that lie in the same octaves; 0 for one whose tensors are not all arguments
 * by position: what is inside of another is told exactly by a key's kin. */
static int blur(CallSignature *sig, PyObject *args, PyObject *kwargs)
{
    int found = 0;
    if (PyDict_GET_SIZE(kwargs) != 0)
        return 0;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(args) && found < sig->tensor_count; i++)
        found += PyTuple_GET_ITEM(args, i) == sig->tensors[found].tensor;
    if (found == 0 || found < sig->tensor_count)
        return 0;
    for (int i = 0; i < found; i++)
        blur_sizes(sig->words + sig->tensors[i].at);
    return 1;
}

/* The callable for a signed call's kin, as a new reference, or NULL. The signature is blurred, and its objects let go. */
static PyObject *find_kin(const SignatureCache *kin, CallSignature *sig, PyObject *args, PyObject *kwargs)
{
    CacheNode *node = blur(sig, args, kwargs) ? find_node(kin, sig, hash_of(sig)) : NULL;
    PyObject *found = node == NULL ? NULL : Py_NewRef(node->slot);
    drop_objects(sig);
    return found;
}

/* Let this callable answer a signed call's kin, in place of another; whether that was done, -1 with an error set. The
 * signature is blurred; its objects are the caller's to let go. */
static int insert_kin(SignatureCache *kin, CallSignature *sig, PyObject *args, PyObject *kwargs, PyObject *callable)
{
    int done = 0;
    if (kin->room != 0 && blur(sig, args, kwargs)) {
        uint64_t hash = hash_of(sig);
        CacheNode *node = (CacheNode *)Py_XNewRef(find_node(kin, sig, hash));
        if (node != NULL) {
            PyObject *before = node->slot;
            node->slot = Py_NewRef(callable);
            Py_DECREF(before);
            done = 1;
        } else {
            if (kin->held >= MOST_KIN)
                remove_all_nodes(kin);
            node = new_node(sig, hash);
            done = node != NULL && insert_node(kin, node, callable) ? 1 : -1;
        }
        Py_XDECREF(node);
    }
    return done;
}
