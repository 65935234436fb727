//! PSNs that READs take: one per response packet, which depends on the path MTU.

use longhaul_wire::{Packet, Position};

/// Valid path MTUs, in bytes.
const MTUS: [u32; 5] = [256, 512, 1024, 2048, 4096];

/// PSNs that a READ of `len` bytes takes; without a path MTU, only if equal for every MTU.
pub(crate) fn read_span(len: u32, path_mtu: Option<u32>) -> Option<u64> {
    match path_mtu {
        Some(mtu) => Some(u64::from(len.div_ceil(mtu).max(1))),
        None if len <= MTUS[0] => Some(1),
        None => None,
    }
}

/// PSNs that a READ of `len` bytes takes at the smallest MTU.
pub(crate) fn read_span_max(len: u32) -> u64 {
    u64::from(len.div_ceil(MTUS[0]).max(1))
}

fn is_span(len: u32, mtu: u32, span: u64) -> bool {
    read_span(len, Some(mtu)) == Some(span)
}

/// A stored READ whose PSN range is unknown, because the path MTU is. It is the last packet of its
/// store, and counts as one PSN there.
#[derive(Clone, Copy, Debug)]
struct Unresolved {
    len: u32,
    /// A request followed, and did not show the range.
    for_long: bool,
}

/// The path MTU, and the READ that depends on it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reads {
    /// As seen in packets, in bytes.
    path_mtu: Option<u32>,
    /// According to the connection manager's messages; the end points may use another one.
    told_mtu: Option<u32>,
    unresolved: Option<Unresolved>,
}

impl Reads {
    pub(crate) fn new(told_mtu: Option<u32>) -> Self {
        Reads { path_mtu: None, told_mtu, unresolved: None }
    }

    /// For a flow whose store is discarded.
    pub(crate) fn afresh(self) -> Self {
        Reads { unresolved: None, ..self }
    }

    #[inline]
    pub(crate) fn path_mtu(&self) -> Option<u32> {
        self.path_mtu
    }

    /// Learns the path MTU from a first or middle packet, which is as long.
    #[inline]
    pub(crate) fn learn(&mut self, packet: &Packet<'_>, payload_len: usize) {
        if matches!(packet.opcode().position(), Position::First | Position::Middle) {
            let known = MTUS.into_iter().find(|&mtu| mtu as usize == payload_len);
            self.path_mtu = known.or(self.path_mtu);
        }
    }

    /// Notes that a READ of `len` bytes was stored whose range is unknown.
    pub(crate) fn note_unresolved(&mut self, len: u32) {
        self.unresolved = Some(Unresolved { len, for_long: false });
    }

    #[inline]
    pub(crate) fn is_unresolved(&self) -> bool {
        self.unresolved.is_some()
    }

    /// Most PSNs that the unresolved READ may take; 0 without one.
    pub(crate) fn unresolved_max(&self) -> u64 {
        self.unresolved.map_or(0, |read| read_span_max(read.len))
    }

    /// The range of the unresolved READ, if the path MTU is known or if a request `distance` PSNs
    /// behind its first shows it. Only the next request counts: the distance of a later one may
    /// equal the range at another MTU.
    pub(crate) fn resolve_by_request(&mut self, distance: u64) -> Option<u64> {
        let Unresolved { len, for_long } = self.unresolved?;
        let is_fitting = |mtu: u32| is_span(len, mtu, distance);
        // If the distance contradicts the announced MTU, the LAN may have lost requests: only the
        // response decides.
        let may_tell = !for_long && self.told_mtu.is_none_or(is_fitting);
        let by_distance = Some(distance).filter(|_| may_tell && MTUS.into_iter().any(is_fitting));
        let span = self.path_mtu.and_then(|mtu| read_span(len, Some(mtu))).or(by_distance);
        self.unresolved = match span {
            Some(_) => None,
            None => Some(Unresolved { len, for_long: for_long || distance > 0 }),
        };
        span
    }

    /// The range of the unresolved READ, if its response shows it. `ends_at`: PSNs up to the end of
    /// the response, if this packet is its last.
    pub(crate) fn resolve_by_response(&mut self, ends_at: Option<u64>) -> Option<u64> {
        let Unresolved { len, .. } = self.unresolved?;
        let fits = |span: &u64| MTUS.into_iter().any(|mtu| is_span(len, mtu, *span));
        let span = ends_at.or_else(|| read_span(len, self.path_mtu)).filter(fits)?;
        self.unresolved = None;
        Some(span)
    }
}
