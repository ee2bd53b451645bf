/* A few threads that help with loops whose turns are independent.
 *
 * The caller works too and never waits for a worker that did not come: on a machine that is busy with
 * other things a worker may get no core for milliseconds, and a barrier for all (as OpenMP's) would
 * wait that long some hundred times a step. It waits only for turns that a worker has begun.
 *
 * `ticket` holds the number of the job in its upper half and the next turn in its lower half. A
 * worker that takes a turn by compare-and-swap knows thereby that the job it has read is not over: the
 * next job is written only when every turn of this one is done.
 */
#include "common.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

#define MOST_HELPERS 63
#define SPINS 4000 /* some tens of microseconds: the gaps between the loops of one step */

static struct {
    _Atomic uint64_t ticket;
    _Atomic int64_t done;
    int64_t turns;
    Turn turn;
    void *context;
    _Atomic int sleepers;
    int workers;
    pthread_mutex_t lock;
    pthread_cond_t wake;
} pool = {.lock = PTHREAD_MUTEX_INITIALIZER, .wake = PTHREAD_COND_INITIALIZER};

static inline void rest(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#else
    atomic_signal_fence(memory_order_seq_cst);
#endif
}

/* Take turns of the job until none is left. */
static void work(void)
{
    for (;;) {
        uint64_t ticket = atomic_load_explicit(&pool.ticket, memory_order_acquire);
        int64_t turns = pool.turns, index = (int64_t)(ticket & 0xffffffffu);
        Turn turn = pool.turn;
        void *context = pool.context;
        if (index >= turns)
            return;
        if (!atomic_compare_exchange_weak(&pool.ticket, &ticket, ticket + 1))
            continue;
        turn(context, index);
        atomic_fetch_add_explicit(&pool.done, 1, memory_order_release);
    }
}

static void *serve(void *unused)
{
    (void)unused;
    for (;;) {
        uint64_t seen = atomic_load(&pool.ticket) >> 32;
        work();
        int spins = 0;
        while (atomic_load(&pool.ticket) >> 32 == seen && spins++ < SPINS)
            rest();
        if (atomic_load(&pool.ticket) >> 32 != seen)
            continue;
        pthread_mutex_lock(&pool.lock);
        atomic_fetch_add(&pool.sleepers, 1);
        while (atomic_load(&pool.ticket) >> 32 == seen)
            pthread_cond_wait(&pool.wake, &pool.lock);
        atomic_fetch_sub(&pool.sleepers, 1);
        pthread_mutex_unlock(&pool.lock);
    }
    return NULL;
}

static void start_workers(int64_t wanted)
{
    while (pool.workers < wanted && pool.workers < MOST_HELPERS) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, serve, NULL))
            return; /* the loop is done all the same, by fewer */
        pthread_detach(thread);
        pool.workers++;
    }
}

/* `turn(context, i)` for i in 0 .. turns. One caller at a time: the engine's thread. */
void share(int64_t threads, int64_t turns, Turn turn, void *context)
{
    if (threads <= 1 || turns <= 1) {
        for (int64_t i = 0; i < turns; i++)
            turn(context, i);
        return;
    }
    start_workers(threads - 1);
    uint64_t job = (atomic_load(&pool.ticket) >> 32) + 1;
    pool.turns = turns;
    pool.turn = turn;
    pool.context = context;
    atomic_store(&pool.done, 0);
    atomic_store_explicit(&pool.ticket, job << 32, memory_order_release);
    if (atomic_load(&pool.sleepers)) {
        pthread_mutex_lock(&pool.lock);
        pthread_cond_broadcast(&pool.wake);
        pthread_mutex_unlock(&pool.lock);
    }
    work();
    for (int spins = 0; atomic_load_explicit(&pool.done, memory_order_acquire) < turns; spins++)
        spins < SPINS ? rest() : (void)sched_yield();
}
