/* The functions of DPDK that a port needs. Most of DPDK's data path is inline functions and structures with bit fields,
 * which only C can use; this file makes no decisions. Functions that return int return 0 or more, or a negative errno. */
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
    uint16_t spread_slots;   /* of the table from hashes to queues; 0: it cannot be set */
    uint8_t takes_chains;    /* sends frames that span several buffers */
    uint8_t gives_chains;    /* spreads received frames over several buffers */
    uint8_t hashes_addresses; /* spreads frames over queues by their two IP addresses alone */
    uint8_t hash_key_bytes;  /* 0: the key cannot be set */
};

struct lh_setup {
    struct rte_mempool *const *pools; /* one per transmit queue and its receive queues */
    const uint8_t *hash_key;          /* of info.hash_key_bytes; NULL: the device's default spreading */
    uint32_t mtu;
    uint16_t tx_queues;
    uint16_t rx_queues_each;          /* receive queues per transmit queue */
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

/* Maximum burst of the functions below. */
#define LH_BURST_MAX 64

/* Keeps what DPDK logs instead of printing it; prints it too if told to. */
void lh_keep_log(int print);
/* Returns the first error that was logged since the last call, zero-terminated; empty if there is none. */
void lh_first_error(char *out, size_t size);

int lh_init(int argc, char **argv);
int lh_register_thread(void);
void lh_unregister_thread(void);

/* Attaches a device, whose full name is given too, and finds its port. */
int lh_attach(const char *device, const char *devargs, uint16_t *port);
/* Stops the port and detaches its device. */
int lh_detach(uint16_t port);
int lh_describe(uint16_t port, struct lh_info *info);
int lh_configure(uint16_t port, const struct lh_setup *setup);
/* Makes a started port spread frames over queues by its configured key, and checks that it does: -ENOTSUP if it uses
 * another key. */
int lh_spread_evenly(uint16_t port, const uint8_t *hash_key, uint16_t queues);
int lh_start(uint16_t port);
int lh_stop(uint16_t port);
/* 1 if the link is up, 0 if it is down. */
int lh_link_is_up(uint16_t port);
/* Brings the link of a started port up, or takes it down. */
int lh_set_link(uint16_t port, int is_up);
int lh_statistics(uint16_t port, struct lh_stats *stats);

struct rte_mempool *lh_pool(const char *name, unsigned buffers, unsigned buffer_bytes, int socket);
void lh_pool_free(struct rte_mempool *pool);
/* Number of free buffers. */
unsigned lh_pool_free_buffers(const struct rte_mempool *pool);

/* Receives at most LH_BURST_MAX frames and returns their number. */
unsigned lh_receive(uint16_t port, uint16_t queue, struct lh_frame *frames, unsigned count);
/* Copies all segments of a frame to out, which has frame->len bytes. */
void lh_gather(const struct lh_frame *frame, uint8_t *out);
/* Empty frames of one buffer each, all or none. */
int lh_allocate(struct rte_mempool *pool, struct lh_frame *frames, unsigned count);
/* Spreads len bytes over empty frames, filling each but the last, and chains them to the first one. */
void lh_spread(struct lh_frame *frames, unsigned count, const uint8_t *bytes, uint32_t len);
/* A pool of buffers without memory of their own. */
struct rte_mempool *lh_reference_pool(const char *name, unsigned buffers, int socket);
/* Makes an empty frame of such a pool refer to bytes elsewhere in DPDK's memory, which must not change until let_go is
 * called with lease, by any thread. -EFAULT: the bytes are in other memory, which devices cannot access. */
int lh_refer(struct lh_frame *frame, const uint8_t *bytes, uint32_t len, void (*let_go)(void *bytes, void *lease),
             void *lease);
/* Sends at most LH_BURST_MAX frames and returns how many the device accepted, starting with the first. */
unsigned lh_transmit(uint16_t port, uint16_t queue, const struct lh_frame *frames, unsigned count);
/* Frees frames, except those whose mbuf is NULL. */
void lh_free(const struct lh_frame *frames, unsigned count);

#endif
