// Counts the bytes of the heap in use and their peak, as an outside judge of what a step takes.
//   gcc -O2 -shared -fPIC -o heap_counter.so heap_counter.c -ldl;  LD_PRELOAD=./heap_counter.so python ...
// Then, with ctypes.CDLL(None): heap_mark() lets the peak begin anew, heap_live() and heap_peak() read.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <malloc.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static atomic_long live, peak;
static void *(*next_malloc)(size_t);
static void *(*next_calloc)(size_t, size_t);
static void *(*next_realloc)(void *, size_t);
static void *(*next_memalign)(size_t, size_t);
static void *(*next_aligned_alloc)(size_t, size_t);
static int (*next_posix_memalign)(void **, size_t, size_t);
static void (*next_free)(void *);
static int finding;

// dlsym itself allocates before the next allocator is known.
static char early[65536];
static size_t early_used;
static void *early_alloc(size_t size) {
  void *block = early + early_used;
  early_used += (size + 15) & ~(size_t)15;
  return early_used <= sizeof early ? block : NULL;
}
static int is_early(void *block) { return (char *)block >= early && (char *)block < early + sizeof early; }

static int ready(void) {
  if (next_malloc) return 1;
  if (finding) return 0;
  finding = 1;
  next_calloc = dlsym(RTLD_NEXT, "calloc");
  next_realloc = dlsym(RTLD_NEXT, "realloc");
  next_memalign = dlsym(RTLD_NEXT, "memalign");
  next_aligned_alloc = dlsym(RTLD_NEXT, "aligned_alloc");
  next_posix_memalign = dlsym(RTLD_NEXT, "posix_memalign");
  next_free = dlsym(RTLD_NEXT, "free");
  next_malloc = dlsym(RTLD_NEXT, "malloc");
  finding = 0;
  return 1;
}

static void *taken(void *block) {
  if (block == NULL) return NULL;
  long now = atomic_fetch_add(&live, (long)malloc_usable_size(block)) + (long)malloc_usable_size(block);
  long seen = atomic_load(&peak);
  while (now > seen && !atomic_compare_exchange_weak(&peak, &seen, now)) {
  }
  return block;
}
static void given_back(void *block) { atomic_fetch_sub(&live, (long)malloc_usable_size(block)); }

void *malloc(size_t size) { return ready() ? taken(next_malloc(size)) : early_alloc(size); }
void *calloc(size_t count, size_t size) { return ready() ? taken(next_calloc(count, size)) : early_alloc(count * size); }
void *memalign(size_t alignment, size_t size) { return ready() ? taken(next_memalign(alignment, size)) : NULL; }
void *aligned_alloc(size_t alignment, size_t size) { return ready() ? taken(next_aligned_alloc(alignment, size)) : NULL; }
int posix_memalign(void **block, size_t alignment, size_t size) {
  int failed = ready() ? next_posix_memalign(block, alignment, size) : 12;
  if (!failed) taken(*block);
  return failed;
}
void free(void *block) {
  if (block == NULL || is_early(block)) return;
  ready();
  given_back(block);
  next_free(block);
}
void *realloc(void *block, size_t size) {
  if (!ready()) return early_alloc(size);
  if (is_early(block)) {
    void *fresh = malloc(size);
    if (fresh) memcpy(fresh, block, size);
    return fresh;
  }
  long before = block ? (long)malloc_usable_size(block) : 0;
  void *fresh = next_realloc(block, size);
  if (fresh == NULL && size > 0) return NULL;
  atomic_fetch_sub(&live, before);
  return taken(fresh);
}

long heap_live(void) { return atomic_load(&live); }
long heap_peak(void) { return atomic_load(&peak); }
void heap_mark(void) { atomic_store(&peak, atomic_load(&live)); }
