//! Configuration of a connection manager.

use longhaul_units::Duration;

/// Configuration of a [`crate::ConnectionManager`].
///
/// The defaults are Linux's and suit any distance on Earth. A laboratory with deliberate losses
/// needs a shorter `response_timeout_code`; below the round trip plus the peer's processing time,
/// messages are retransmitted needlessly (which does no harm).
#[derive(Clone, Debug)]
pub struct Config {
    /// This adapter's GUID, sent in REQ, REP and timeouts; the same for all processes of a host.
    pub ca_guid: u64,
    /// Time until an unanswered message is retransmitted: 4.096 µs times 2^code, plus twice the
    /// packet lifetime. 1 to 31; default 20 (4.3 s), as in Linux. Also announced to peers as our
    /// own limit.
    pub response_timeout_code: u8,
    /// Retransmissions before the peer counts as unreachable. 0 to 15; default 15.
    pub retries_max: u8,
    /// One-way lifetime of a packet: 4.096 µs times 2^code, 0 to 31; default 18 (1.07 s), as in
    /// Linux for RoCE. Added (twice) to the response timeout of REQ, DREQ and SIDR_REQ.
    pub packet_lifetime_code: u8,
    /// Largest response timeout and MRA service timeout code that a peer may impose on us. 8 to 31;
    /// default 22 (17 s). Bounds how long a silent peer holds a connection's memory (about 550
    /// bytes).
    pub peer_timeout_code_max: u8,
    /// How long the program may take to decide on a peer's request before the request is given up.
    /// Default 5 minutes.
    pub decision_timeout: Duration,
    /// A peer that retransmits its REQ or REP while our program decides gets an MRA with this
    /// service timeout: 4.096 µs times 2^code, 0 to 31; `None` for never. Default 24 (69 s), as in
    /// Linux's RDMA connection manager. No MRA is sent within a quarter of our own response
    /// timeout: earlier duplicates are no retransmissions.
    pub mra_timeout_code: Option<u8>,
    /// How long an ended connection's ids and QPNs stay reserved, so that late packets and
    /// duplicate messages are recognised. At least the largest round trip. Default 2.15 s (packet
    /// lifetime code plus one, as in Linux).
    pub timewait: Duration,
    /// Connections in any state, time-wait included. Default 65,536; about 550 bytes each while one
    /// waits for an answer, 300 when established.
    pub connections_max: usize,
    /// Passive connections that are not established, over all listeners. Default 16,384. Further
    /// requests are dropped, and the peer retransmits them.
    pub half_open_max: usize,
    /// Requests for datagram services: the peers' and ours, including answered ones that are still
    /// remembered. Default 16,384; about 500 bytes each. At most half of them wait for the
    /// program's decision; answered ones are evicted for new ones.
    pub sidr_max: usize,
    /// How long the answer to a request for a datagram service is kept, to be repeated if the peer
    /// repeats the request. Default 15 s: more than two of the peer's timeouts.
    pub sidr_memory: Duration,
    /// Default backlog of a listener: requests that the program has neither accepted nor rejected.
    /// Default 1024, as in Linux.
    pub backlog_default: usize,
    /// Listeners. Default 1024.
    pub listeners_max: usize,
    /// Replies to unknown peers and to duplicates that wait to be sent. RTUs and first DREPs, one
    /// per connection, are bounded by `connections_max` in addition. Default 1024, 300 bytes each;
    /// further ones are dropped, and the peer retransmits its request.
    pub replies_max: usize,
    /// Leading bits of every communication id of this instance, right-aligned. They distinguish
    /// several processes behind one host address. Default 0.
    pub comm_id_prefix: u32,
    /// Width of `comm_id_prefix` in bits, 0 to 16; default 0: all ids are ours. Messages with
    /// another prefix are dropped unanswered.
    pub comm_id_prefix_bits: u8,
    /// Answer requests for a service without a listener with a rejection (code 8). Default true;
    /// false if another process behind the same address may be the listener.
    pub reject_unknown_services: bool,
    /// Largest path MTU, as `ibv_mtu`: 1 for 256 bytes to 5 for 4096; default 5. A request for a
    /// larger one is rejected (code 26), with this value in the rejection information. If a peer
    /// rejects ours in this way, it is repeated with the peer's value.
    pub path_mtu_code_max: u8,
    /// Our ACK delay, sent in REP: 4.096 µs times 2^code, 0 to 31; default 15, as in kernel rxe.
    pub ack_delay_code: u8,
    /// Seed of the initial communication and transaction ids. Must be unpredictable and differ
    /// between processes and runs on real networks; equal seeds give equal runs.
    pub seed: u64,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            ca_guid: 0x0200_00ff_fe00_0001,
            response_timeout_code: 20,
            retries_max: 15,
            packet_lifetime_code: 18,
            peer_timeout_code_max: 22,
            decision_timeout: Duration::from_ms(300_000),
            mra_timeout_code: Some(24),
            timewait: Duration::from_ms(2150),
            connections_max: 65_536,
            half_open_max: 16_384,
            sidr_max: 16_384,
            sidr_memory: Duration::from_ms(15_000),
            backlog_default: 1024,
            listeners_max: 1024,
            replies_max: 1024,
            comm_id_prefix: 0,
            comm_id_prefix_bits: 0,
            reject_unknown_services: true,
            path_mtu_code_max: 5,
            ack_delay_code: 15,
            seed: 0,
        }
    }
}

impl Config {
    /// The same with every field forced into its documented range.
    pub(crate) fn clamped(mut self) -> Self {
        self.response_timeout_code = self.response_timeout_code.clamp(1, 31);
        self.retries_max = self.retries_max.min(15);
        self.packet_lifetime_code = self.packet_lifetime_code.min(31);
        self.peer_timeout_code_max = self.peer_timeout_code_max.clamp(TIMEOUT_CODE_MIN, 31);
        self.path_mtu_code_max = self.path_mtu_code_max.clamp(1, 5);
        self.ack_delay_code = self.ack_delay_code.min(31);
        self.mra_timeout_code = self.mra_timeout_code.map(|code| code.min(31));
        self.backlog_default = self.backlog_default.max(1);
        self.replies_max = self.replies_max.max(1);
        self.comm_id_prefix_bits = self.comm_id_prefix_bits.min(16);
        // At most half of the ids together, so that a free one is found quickly.
        let ids_max = 1 << (self.comm_id_bits() - 2);
        self.connections_max = self.connections_max.clamp(1, ids_max);
        self.sidr_max = self.sidr_max.clamp(2, ids_max);
        self.half_open_max = self.half_open_max.clamp(1, self.connections_max);
        self.comm_id_prefix &= (1 << self.comm_id_prefix_bits) - 1;
        self
    }

    /// Bits of a communication id below the prefix.
    pub(crate) fn comm_id_bits(&self) -> u32 {
        32 - u32::from(self.comm_id_prefix_bits)
    }

    /// True when `comm_id` carries this instance's prefix.
    pub(crate) fn owns(&self, comm_id: u32) -> bool {
        u64::from(comm_id) >> self.comm_id_bits() == u64::from(self.comm_id_prefix)
    }

    /// Timeout of our REQ, DREQ or SIDR_REQ.
    pub(crate) fn response_timeout(&self) -> Duration {
        code_duration(self.response_timeout_code) + self.round_trip()
    }

    /// Timeout of our REP: the value that the peer announced, within our bounds.
    pub(crate) fn peer_timeout(&self, code: u8) -> Duration {
        code_duration(code.clamp(TIMEOUT_CODE_MIN, self.peer_timeout_code_max)) + self.round_trip()
    }

    /// Extension of the peer's timeout by an MRA of ours with `code`, plus the time until its next
    /// message arrives.
    pub(crate) fn mra_timeout(&self, code: u8) -> Duration {
        code_duration(code) + self.response_timeout()
    }

    fn round_trip(&self) -> Duration {
        code_duration(self.packet_lifetime_code).times(2)
    }
}

/// Smallest timeout code accepted from a peer (8: 1 ms); a smaller one would cause needless
/// retransmissions.
const TIMEOUT_CODE_MIN: u8 = 8;

/// 4.096 µs times 2^code; unlike an ACK timeout, code 0 is no special case.
fn code_duration(code: u8) -> Duration {
    Duration::from_ps(4_096_000 << (code & 31))
}
