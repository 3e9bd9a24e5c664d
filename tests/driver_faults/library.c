/* A library in place of a GPU's driver: it passes calls on and can refuse them. COUNT, DRIVER,
   `names` and `kinds` are defined before and after this file. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>

extern const char *const names[];
extern const unsigned char kinds[];
void *functions[COUNT];
enum { OTHER, NEVER, ALLOCATION };
enum { OUT_OF_MEMORY = 2 };
typedef unsigned long address_t;
static int (*allocate)(address_t *, size_t), (*release)(address_t), (*ask)(size_t *, size_t *);
static int (*allocate_from)(address_t *, size_t, void *, void *);
static atomic_long calls, live, fails = -1;
static atomic_int kind, code, stays;

__attribute__((constructor)) static void load(void) {
    void *driver = dlopen(DRIVER, RTLD_NOW | RTLD_LOCAL);
    if (!driver) return;
    for (int i = 0; i < COUNT; ++i) functions[i] = dlsym(driver, names[i]);
    allocate = (int (*)(address_t *, size_t))dlsym(driver, "cuMemAlloc_v2");
    allocate_from =
        (int (*)(address_t *, size_t, void *, void *))dlsym(driver, "cuMemAllocFromPoolAsync");
    release = (int (*)(address_t))dlsym(driver, "cuMemFree_v2");
    ask = (int (*)(size_t *, size_t *))dlsym(driver, "cuMemGetInfo_v2");
}

static int refused_of_kind(int of_kind) {
    if (of_kind == NEVER || (kind == ALLOCATION && of_kind != ALLOCATION)) return 0;
    long call = calls++, first = fails;
    return first >= 0 && (call == first || (stays && call > first)) ? code : 0;
}

/* The result of function `i`; 0 if the driver is to be called. */
int refused(int i) { return refused_of_kind(kinds[i]); }

/* A budget of memory, as if another process took the rest of it when this one first asks for more:
   until then the driver reports all that is free. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static size_t budget, used;
static int is_taken;
static struct { address_t at; size_t bytes; } allocations[1 << 12];

static void count(address_t at, size_t bytes) {
    for (size_t i = 0; i < sizeof allocations / sizeof *allocations; ++i)
        if (allocations[i].at == (bytes ? 0 : at)) {
            used += bytes - (bytes ? 0 : allocations[i].bytes);
            allocations[i].at = bytes ? at : 0;
            allocations[i].bytes = bytes;
            return;
        }
}

/* Allocates memory, of a pool if there is one. */
static int allocated_from(address_t *at, size_t bytes, void *pool, void *stream) {
    int result = refused_of_kind(ALLOCATION);
    if (result) return result;
    pthread_mutex_lock(&lock);
    if (budget && used + bytes > budget) is_taken = 1;
    if (is_taken && used + bytes > budget) result = OUT_OF_MEMORY;
    else result = pool ? allocate_from(at, bytes, pool, stream) : allocate(at, bytes);
    if (!result) count(*at, bytes);
    pthread_mutex_unlock(&lock);
    live += !result;
    return result;
}

int cuMemAlloc_v2(address_t *at, size_t bytes) { return allocated_from(at, bytes, NULL, NULL); }

int cuMemAllocFromPoolAsync(address_t *at, size_t bytes, void *pool, void *stream) {
    return allocated_from(at, bytes, pool, stream);
}

int cuMemFree_v2(address_t at) {
    pthread_mutex_lock(&lock);
    count(at, 0);
    int result = release(at);
    pthread_mutex_unlock(&lock);
    --live;
    return result;
}

int cuMemGetInfo_v2(size_t *free, size_t *all) {
    int result = refused_of_kind(OTHER);
    if (result || (result = ask(free, all))) return result;
    pthread_mutex_lock(&lock);
    if (is_taken) *free = used < budget ? budget - used : 0;
    pthread_mutex_unlock(&lock);
    return 0;
}

/* `bytes` more are allowed than are allocated; 0 ends the budget. */
void allow(long bytes) {
    pthread_mutex_lock(&lock);
    budget = bytes ? used + bytes : 0;
    is_taken = 0;
    pthread_mutex_unlock(&lock);
}

/* The calls of the kind are counted from now on. Number `call` fails, and with `and_stays` every
   later one too. */
void arm(long call, int result, int of_kind, int and_stays) {
    calls = 0; code = result; kind = of_kind; stays = and_stays; fails = call;
}
long counted(void) { return calls; }
long allocated(void) { return live; }
