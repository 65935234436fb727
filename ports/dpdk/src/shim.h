/* What the port needs of DPDK. Most of DPDK's data path is inline functions and structures with bit fields, which only
 * C can call; nothing here decides anything. Functions that return int return 0 or more, or a negative errno. */
#ifndef LONGHAUL_DPDK_SHIM_H
#define LONGHAUL_DPDK_SHIM_H

#include <stddef.h>
#include <stdint.h>

struct rte_mempool;
struct rte_mbuf;

/* A device, before it is configured. */
struct lh_info {
    char driver[64];
    uint32_t mtu_max;
    int32_t socket;          /* NUMA node, or -1 */
    uint16_t rx_queues_max;
    uint16_t tx_queues_max;
    uint16_t spread_slots;   /* of the table from hashes to queues; 0: it has none that can be set */
    uint8_t takes_chains;    /* sends frames that lie in several buffers */
    uint8_t gives_chains;    /* spreads received frames over several buffers */
    uint8_t hashes_addresses; /* spreads frames over queues by their two IP addresses alone */
    uint8_t hash_key_bytes;  /* 0: the key cannot be set */
};

struct lh_setup {
    struct rte_mempool *const *pools; /* one for each sending queue and its receiving ones */
    const uint8_t *hash_key;          /* of info.hash_key_bytes; NULL: as the device spreads frames by itself */
    uint32_t mtu;
    uint16_t tx_queues;
    uint16_t rx_queues_each;          /* receiving queues that go with one sending queue */
    uint16_t rx_slots;
    uint16_t tx_slots;
    uint8_t chains;          /* frames may be longer than a buffer */
    uint8_t refers;          /* frames may be sent by lh_refer */
};

/* A frame in one mbuf, or in a chain of them. */
struct lh_frame {
    struct rte_mbuf *mbuf;
    uint8_t *bytes;          /* of the first segment */
    uint32_t len;            /* of all segments */
    uint16_t segments;
    uint16_t has_bad_sum;    /* the device found its IPv4 or UDP checksum wrong */
};

struct lh_stats {
    uint64_t rx_missed;
    uint64_t rx_errors;
    uint64_t rx_no_mbuf;
    uint64_t tx_errors;
};

/* Longest burst of any function here. */
#define LH_BURST_MAX 64

/* Keeps what DPDK logs instead of printing it; prints it too if told to. */
void lh_keep_log(int print);
/* Takes the first error that was logged since the last call, zero-terminated; empty without one. */
void lh_first_error(char *out, size_t size);

int lh_init(int argc, char **argv);
int lh_register_thread(void);
void lh_unregister_thread(void);

/* Attaches a device, whose name in full is given too, and finds its port. */
int lh_attach(const char *device, const char *devargs, uint16_t *port);
/* Stops the port and gives its device back. */
int lh_detach(uint16_t port);
int lh_describe(uint16_t port, struct lh_info *info);
int lh_configure(uint16_t port, const struct lh_setup *setup);
/* Has a started port spread frames over queues by the key that it was configured with, and asks whether it does:
 * -ENOTSUP when it goes by another one. */
int lh_spread_evenly(uint16_t port, const uint8_t *hash_key, uint16_t queues);
int lh_start(uint16_t port);
int lh_stop(uint16_t port);
/* 1 when the link is up, 0 when it is down. */
int lh_link_is_up(uint16_t port);
int lh_statistics(uint16_t port, struct lh_stats *stats);

struct rte_mempool *lh_pool(const char *name, unsigned buffers, unsigned buffer_bytes, int socket);
void lh_pool_free(struct rte_mempool *pool);
/* Buffers that nobody has. */
unsigned lh_pool_free_buffers(const struct rte_mempool *pool);

/* Fills in at most LH_BURST_MAX frames and returns how many. */
unsigned lh_receive(uint16_t port, uint16_t queue, struct lh_frame *frames, unsigned count);
/* Copies all segments of a frame to out, which has frame->len bytes. */
void lh_gather(const struct lh_frame *frame, uint8_t *out);
/* Empty frames of one buffer each, all or none. */
int lh_allocate(struct rte_mempool *pool, struct lh_frame *frames, unsigned count);
/* Lays len bytes into so many empty frames, each but the last one full, and makes the first one all of them. */
void lh_spread(struct lh_frame *frames, unsigned count, const uint8_t *bytes, uint32_t len);
/* A pool of buffers without memory of their own. */
struct rte_mempool *lh_reference_pool(const char *name, unsigned buffers, int socket);
/* Makes an empty frame of such a pool one that lies elsewhere in DPDK's memory, where nobody changes it before let_go is
 * called with lease, by whichever thread. -EFAULT: it lies in other memory, which devices cannot reach. */
int lh_refer(struct lh_frame *frame, const uint8_t *bytes, uint32_t len, void (*let_go)(void *bytes, void *lease),
             void *lease);
/* Sends at most LH_BURST_MAX frames and returns how many the device took, from the first on. */
unsigned lh_transmit(uint16_t port, uint16_t queue, const struct lh_frame *frames, unsigned count);
/* Frees frames, but for those whose mbuf is NULL. */
void lh_free(const struct lh_frame *frames, unsigned count);

#endif
