#define _GNU_SOURCE
#include <rte_config.h>

#include "shim.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include <rte_dev.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_ethdev.h>
#include <rte_lcore.h>
#include <rte_log.h>
#include <rte_mbuf.h>
#include <rte_memory.h>
#include <rte_mempool.h>
#include <rte_prefetch.h>

/* Size of each thread's cache of a pool's buffers. */
#define POOL_CACHE 256
/* Both addresses only: unless UDP is named, its ports are not hashed. */
#define RSS_ADDRESSES (RTE_ETH_RSS_IPV4 | RTE_ETH_RSS_IPV6)
#define RSS_ADDRESSES_TOO (RTE_ETH_RSS_FRAG_IPV4 | RTE_ETH_RSS_NONFRAG_IPV4_OTHER | RTE_ETH_RSS_FRAG_IPV6 | \
                           RTE_ETH_RSS_NONFRAG_IPV6_OTHER | RTE_ETH_RSS_IPV6_EX)
#define RSS_PORTS (RTE_ETH_RSS_NONFRAG_IPV4_UDP | RTE_ETH_RSS_NONFRAG_IPV6_UDP | RTE_ETH_RSS_IPV6_UDP_EX | \
                   RTE_ETH_RSS_PORT)
/* Maximum lengths of any driver's key and table. */
#define HASH_KEY_MAX 255
#define SPREAD_SLOTS_MAX 4096

static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;
static char log_line[512];
static int log_prints;

static ssize_t keep(void *unused, const char *text, size_t size)
{
    (void)unused;
    if (log_prints)
        fwrite(text, 1, size, stderr);
    const char *end = memchr(text, '\n', size);
    size_t len = end != NULL ? (size_t)(end - text) : size;
    pthread_mutex_lock(&log_lock);
    /* Later errors are less specific than the first one. */
    if (len > 0 && log_line[0] == '\0' && rte_log_cur_msg_loglevel() <= (int)RTE_LOG_ERR) {
        size_t kept = len < sizeof log_line ? len : sizeof log_line - 1;
        memcpy(log_line, text, kept);
        log_line[kept] = '\0';
    }
    pthread_mutex_unlock(&log_lock);
    return (ssize_t)size;
}

void lh_keep_log(int print)
{
    cookie_io_functions_t functions = { .write = keep };
    FILE *stream = fopencookie(NULL, "w", functions);
    log_prints = print;
    if (stream != NULL) {
        setvbuf(stream, NULL, _IOLBF, sizeof log_line);
        rte_openlog_stream(stream);
    }
}

void lh_first_error(char *out, size_t size)
{
    if (size == 0)
        return;
    pthread_mutex_lock(&log_lock);
    strncpy(out, log_line, size - 1);
    out[size - 1] = '\0';
    log_line[0] = '\0';
    pthread_mutex_unlock(&log_lock);
}

int lh_init(int argc, char **argv)
{
    return rte_eal_init(argc, argv) < 0 ? -rte_errno : 0;
}

int lh_register_thread(void)
{
    return rte_lcore_id() == LCORE_ID_ANY && rte_thread_register() < 0 ? -rte_errno : 0;
}

void lh_unregister_thread(void)
{
    rte_thread_unregister();
}

int lh_attach(const char *device, const char *devargs, uint16_t *port)
{
    /* DPDK does not report an error for a device that is already attached. */
    if (rte_eth_dev_get_port_by_name(device, port) == 0)
        return -EEXIST;
    uint8_t was_there[RTE_MAX_ETHPORTS] = { 0 };
    uint16_t each;
    RTE_ETH_FOREACH_DEV(each)
        was_there[each] = 1;
    int done = rte_dev_probe(devargs);
    if (done < 0)
        return done;
    RTE_ETH_FOREACH_DEV(each) {
        if (!was_there[each]) {
            *port = each;
            return 0;
        }
    }
    return -ENODEV;
}

int lh_detach(uint16_t port)
{
    struct rte_eth_dev_info info;
    int done = rte_eth_dev_info_get(port, &info);
    if (done < 0)
        return done;
    struct rte_device *device = info.device;
    rte_eth_dev_stop(port);
    rte_eth_dev_close(port);
    return rte_dev_remove(device);
}

int lh_describe(uint16_t port, struct lh_info *out)
{
    struct rte_eth_dev_info info;
    int done = rte_eth_dev_info_get(port, &info);
    if (done < 0)
        return done;
    memset(out, 0, sizeof *out);
    if (info.driver_name != NULL)
        strncpy(out->driver, info.driver_name, sizeof out->driver - 1);
    uint32_t around = RTE_ETHER_HDR_LEN + RTE_ETHER_CRC_LEN;
    if (info.max_mtu != UINT16_MAX && info.max_rx_pktlen > info.max_mtu)
        around = info.max_rx_pktlen - info.max_mtu;
    out->mtu_max = RTE_MIN((uint32_t)info.max_mtu, info.max_rx_pktlen - around);
    out->rx_queues_max = info.max_rx_queues;
    out->tx_queues_max = info.max_tx_queues;
    out->spread_slots = info.reta_size <= SPREAD_SLOTS_MAX ? info.reta_size : 0;
    out->takes_chains = (info.tx_offload_capa & RTE_ETH_TX_OFFLOAD_MULTI_SEGS) != 0;
    out->gives_chains = (info.rx_offload_capa & RTE_ETH_RX_OFFLOAD_SCATTER) != 0;
    out->hashes_addresses = (info.flow_type_rss_offloads & RSS_ADDRESSES) == RSS_ADDRESSES;
    out->hash_key_bytes = info.hash_key_size;
    out->socket = rte_eth_dev_socket_id(port);
    return 0;
}

static struct rte_eth_rss_conf hash_by_addresses(const struct rte_eth_dev_info *info, uint8_t *key)
{
    return (struct rte_eth_rss_conf){
        .rss_key = key,
        .rss_key_len = info->hash_key_size,
        .rss_hf = (RSS_ADDRESSES | RSS_ADDRESSES_TOO) & info->flow_type_rss_offloads,
    };
}

int lh_configure(uint16_t port, const struct lh_setup *setup)
{
    struct rte_eth_dev_info info;
    int done = rte_eth_dev_info_get(port, &info);
    if (done < 0)
        return done;
    struct rte_eth_conf conf = { .rxmode = { .mtu = setup->mtu } };
    uint16_t rx_queues = (uint16_t)(setup->tx_queues * setup->rx_queues_each);
    uint8_t key[HASH_KEY_MAX];
    if (setup->hash_key != NULL) {
        memcpy(key, setup->hash_key, info.hash_key_size);
        conf.rxmode.mq_mode = RTE_ETH_MQ_RX_RSS;
        conf.rx_adv_conf.rss_conf = hash_by_addresses(&info, key);
    }
    conf.rxmode.offloads =
        (RTE_ETH_RX_OFFLOAD_IPV4_CKSUM | RTE_ETH_RX_OFFLOAD_UDP_CKSUM) & info.rx_offload_capa;
    if (setup->chains) {
        conf.rxmode.offloads |= RTE_ETH_RX_OFFLOAD_SCATTER & info.rx_offload_capa;
        conf.txmode.offloads |= RTE_ETH_TX_OFFLOAD_MULTI_SEGS & info.tx_offload_capa;
    } else if (!setup->refers) {
        /* All sent frames come from one pool and have one reference. */
        conf.txmode.offloads |= RTE_ETH_TX_OFFLOAD_MBUF_FAST_FREE & info.tx_offload_capa;
    }
    uint16_t rx_slots = setup->rx_slots, tx_slots = setup->tx_slots;
    if ((done = rte_eth_dev_configure(port, rx_queues, setup->tx_queues, &conf)) < 0 ||
        (done = rte_eth_dev_adjust_nb_rx_tx_desc(port, &rx_slots, &tx_slots)) < 0)
        return done;
    unsigned socket = (unsigned)rte_eth_dev_socket_id(port);
    for (uint16_t queue = 0; queue < rx_queues; queue++) {
        struct rte_mempool *pool = setup->pools[queue / setup->rx_queues_each];
        done = rte_eth_rx_queue_setup(port, queue, rx_slots, socket, NULL, pool);
        if (done < 0)
            return done;
    }
    struct rte_eth_txconf txconf = info.default_txconf;
    txconf.offloads = conf.txmode.offloads;
    for (uint16_t queue = 0; queue < setup->tx_queues; queue++) {
        done = rte_eth_tx_queue_setup(port, queue, tx_slots, socket, &txconf);
        if (done < 0)
            return done;
    }
    return 0;
}

int lh_spread_evenly(uint16_t port, const uint8_t *hash_key, uint16_t queues)
{
    struct rte_eth_dev_info info;
    int done = rte_eth_dev_info_get(port, &info);
    if (done < 0)
        return done;
    uint8_t key[HASH_KEY_MAX];
    memcpy(key, hash_key, info.hash_key_size);
    struct rte_eth_rss_conf wanted = hash_by_addresses(&info, key);
    /* Drivers that cannot change the key adopted it when they were configured. */
    done = rte_eth_dev_rss_hash_update(port, &wanted);
    if (done < 0 && done != -ENOTSUP)
        return done;
    if (info.reta_size > 0 && info.reta_size <= SPREAD_SLOTS_MAX) {
        struct rte_eth_rss_reta_entry64 table[SPREAD_SLOTS_MAX / RTE_ETH_RETA_GROUP_SIZE];
        memset(table, 0, sizeof table);
        for (uint16_t slot = 0; slot < info.reta_size; slot++) {
            struct rte_eth_rss_reta_entry64 *group = &table[slot / RTE_ETH_RETA_GROUP_SIZE];
            group->mask |= RTE_BIT64(slot % RTE_ETH_RETA_GROUP_SIZE);
            group->reta[slot % RTE_ETH_RETA_GROUP_SIZE] = slot % queues;
        }
        done = rte_eth_dev_rss_reta_update(port, table, info.reta_size);
        if (done < 0 && done != -ENOTSUP)
            return done;
    }
    uint8_t taken[HASH_KEY_MAX] = { 0 };
    struct rte_eth_rss_conf found = { .rss_key = taken, .rss_key_len = info.hash_key_size };
    done = rte_eth_dev_rss_hash_conf_get(port, &found);
    if (done == -ENOTSUP)
        return 0;
    if (done < 0)
        return done;
    int is_as_wanted = (found.rss_hf & RSS_ADDRESSES) == RSS_ADDRESSES && (found.rss_hf & RSS_PORTS) == 0 &&
                       memcmp(taken, hash_key, info.hash_key_size) == 0;
    return is_as_wanted ? 0 : -ENOTSUP;
}

int lh_start(uint16_t port)
{
    int done = rte_eth_dev_start(port);
    if (done == 0) {
        /* A device without promiscuous mode receives everything. */
        rte_eth_promiscuous_enable(port);
        rte_eth_allmulticast_enable(port);
    }
    return done;
}

int lh_stop(uint16_t port)
{
    return rte_eth_dev_stop(port);
}

int lh_link_is_up(uint16_t port)
{
    struct rte_eth_link link;
    int done = rte_eth_link_get_nowait(port, &link);
    return done < 0 ? done : link.link_status == RTE_ETH_LINK_UP;
}

int lh_set_link(uint16_t port, int is_up)
{
    return is_up ? rte_eth_dev_set_link_up(port) : rte_eth_dev_set_link_down(port);
}

int lh_statistics(uint16_t port, struct lh_stats *out)
{
    struct rte_eth_stats stats;
    int done = rte_eth_stats_get(port, &stats);
    if (done < 0)
        return done;
    out->rx_missed = stats.imissed;
    out->rx_errors = stats.ierrors;
    out->rx_no_mbuf = stats.rx_nombuf;
    out->tx_errors = stats.oerrors;
    return 0;
}

struct rte_mempool *lh_pool(const char *name, unsigned buffers, unsigned buffer_bytes, int socket)
{
    uint16_t room = (uint16_t)(buffer_bytes + RTE_PKTMBUF_HEADROOM);
    struct rte_mempool *pool = rte_pktmbuf_pool_create(name, buffers, POOL_CACHE, 0, room, socket);
    /* Slower memory is better than none. */
    if (pool == NULL && socket != SOCKET_ID_ANY)
        pool = rte_pktmbuf_pool_create(name, buffers, POOL_CACHE, 0, room, SOCKET_ID_ANY);
    return pool;
}

struct rte_mempool *lh_reference_pool(const char *name, unsigned buffers, int socket)
{
    uint16_t notes = RTE_ALIGN(sizeof(struct rte_mbuf_ext_shared_info), RTE_MBUF_PRIV_ALIGN);
    struct rte_mempool *pool = rte_pktmbuf_pool_create(name, buffers, POOL_CACHE, notes, 0, socket);
    if (pool == NULL && socket != SOCKET_ID_ANY)
        pool = rte_pktmbuf_pool_create(name, buffers, POOL_CACHE, notes, 0, SOCKET_ID_ANY);
    return pool;
}

int lh_refer(struct lh_frame *frame, const uint8_t *bytes, uint32_t len, void (*let_go)(void *bytes, void *lease),
             void *lease)
{
    const struct rte_memseg *memory = rte_mem_virt2memseg(bytes, NULL);
    if (memory == NULL)
        return -EFAULT;
    struct rte_mbuf *mbuf = frame->mbuf;
    struct rte_mbuf_ext_shared_info *shared = rte_mbuf_to_priv(mbuf);
    shared->free_cb = let_go;
    shared->fcb_opaque = lease;
    rte_mbuf_ext_refcnt_set(shared, 1);
    rte_iova_t iova = memory->iova;
    if (iova != RTE_BAD_IOVA)
        iova += RTE_PTR_DIFF(bytes, memory->addr);
    rte_pktmbuf_attach_extbuf(mbuf, (void *)(uintptr_t)bytes, iova, (uint16_t)len, shared);
    frame->bytes = (uint8_t *)(uintptr_t)bytes;
    frame->len = len;
    return 0;
}

void lh_pool_free(struct rte_mempool *pool)
{
    rte_mempool_free(pool);
}

unsigned lh_pool_free_buffers(const struct rte_mempool *pool)
{
    return rte_mempool_avail_count(pool);
}

static inline uint16_t has_bad_sum(uint64_t flags)
{
    return (flags & RTE_MBUF_F_RX_IP_CKSUM_MASK) == RTE_MBUF_F_RX_IP_CKSUM_BAD ||
           (flags & RTE_MBUF_F_RX_L4_CKSUM_MASK) == RTE_MBUF_F_RX_L4_CKSUM_BAD;
}

unsigned lh_receive(uint16_t port, uint16_t queue, struct lh_frame *frames, unsigned count)
{
    struct rte_mbuf *mbufs[LH_BURST_MAX];
    uint16_t wanted = (uint16_t)RTE_MIN(count, (unsigned)LH_BURST_MAX);
    uint16_t came = rte_eth_rx_burst(port, queue, mbufs, wanted);
    for (uint16_t at = 0; at < came; at++) {
        struct rte_mbuf *mbuf = mbufs[at];
        rte_prefetch0(rte_pktmbuf_mtod(mbuf, void *));
        frames[at] = (struct lh_frame){
            .mbuf = mbuf,
            .bytes = rte_pktmbuf_mtod(mbuf, uint8_t *),
            .len = mbuf->nb_segs == 1 ? mbuf->data_len : mbuf->pkt_len,
            .segments = mbuf->nb_segs,
            .has_bad_sum = has_bad_sum(mbuf->ol_flags),
        };
    }
    return came;
}

void lh_gather(const struct lh_frame *frame, uint8_t *out)
{
    uint32_t left = frame->len;
    for (const struct rte_mbuf *mbuf = frame->mbuf; mbuf != NULL && left > 0; mbuf = mbuf->next) {
        uint32_t part = RTE_MIN((uint32_t)mbuf->data_len, left);
        memcpy(out, rte_pktmbuf_mtod(mbuf, const uint8_t *), part);
        out += part;
        left -= part;
    }
    /* Lengths are not trusted if the device does not know them itself. */
    memset(out, 0, left);
}

int lh_allocate(struct rte_mempool *pool, struct lh_frame *frames, unsigned count)
{
    struct rte_mbuf *mbufs[LH_BURST_MAX];
    if (count > LH_BURST_MAX)
        return -EINVAL;
    int done = rte_pktmbuf_alloc_bulk(pool, mbufs, count);
    if (done < 0)
        return done;
    for (unsigned at = 0; at < count; at++)
        frames[at] = (struct lh_frame){
            .mbuf = mbufs[at],
            .bytes = rte_pktmbuf_mtod(mbufs[at], uint8_t *),
            .segments = 1,
        };
    return 0;
}

void lh_spread(struct lh_frame *frames, unsigned count, const uint8_t *bytes, uint32_t len)
{
    struct rte_mbuf *head = frames[0].mbuf, *last = head;
    uint32_t left = len;
    for (unsigned at = 0; at < count; at++) {
        struct rte_mbuf *mbuf = frames[at].mbuf;
        uint16_t part = (uint16_t)RTE_MIN(left, (uint32_t)rte_pktmbuf_tailroom(mbuf));
        memcpy(rte_pktmbuf_mtod(mbuf, uint8_t *), bytes, part);
        mbuf->data_len = part;
        bytes += part;
        left -= part;
        if (at > 0) {
            last->next = mbuf;
            last = mbuf;
        }
    }
    head->nb_segs = (uint16_t)count;
    head->pkt_len = len - left;
    frames[0].len = head->pkt_len;
    frames[0].segments = (uint16_t)count;
}

unsigned lh_transmit(uint16_t port, uint16_t queue, const struct lh_frame *frames, unsigned count)
{
    struct rte_mbuf *mbufs[LH_BURST_MAX];
    uint16_t burst = (uint16_t)RTE_MIN(count, (unsigned)LH_BURST_MAX);
    for (uint16_t at = 0; at < burst; at++) {
        struct rte_mbuf *mbuf = frames[at].mbuf;
        if (frames[at].segments == 1) {
            mbuf->data_len = (uint16_t)frames[at].len;
            mbuf->pkt_len = frames[at].len;
        }
        mbufs[at] = mbuf;
    }
    return rte_eth_tx_burst(port, queue, mbufs, burst);
}

void lh_free(const struct lh_frame *frames, unsigned count)
{
    struct rte_mbuf *mbufs[LH_BURST_MAX];
    while (count > 0) {
        unsigned burst = RTE_MIN(count, (unsigned)LH_BURST_MAX);
        for (unsigned at = 0; at < burst; at++)
            mbufs[at] = frames[at].mbuf;
        rte_pktmbuf_free_bulk(mbufs, burst);
        frames += burst;
        count -= burst;
    }
}
