//! The first hop to each peer: its Ethernet address, and the datagrams that wait for one.

use crate::{Config, Memory, Rnic, VerbsError};
use longhaul_neighbour::{HopId, Neighbours, Outgoing, Resolution, multicast_mac};
use longhaul_node::{Frame, Payload, Trailer};
use longhaul_units::{Duration, Instant};
use longhaul_wire::mad::Mad;
use longhaul_wire::{MacAddr, Packet};
use longhaul_work::Emit;
use std::collections::VecDeque;
use std::net::IpAddr;

/// Maximum number of management datagrams that wait for an Ethernet address. Further ones are
/// dropped, and retransmitted by their senders.
const WAITING_MAX: usize = 64;
/// How long each of them waits: the duration of a peer's resolution. By then its sender has
/// retransmitted it or given up.
const WAIT: Duration = Duration::from_ms(3_000);

/// First hop to a peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Hop {
    pub mac: MacAddr,
    /// Keeps the neighbour resolved; return it with [`Hops::release`].
    pub id: Option<HopId>,
}

/// Neighbours of the device's segment; empty without a segment.
pub(crate) struct Hops {
    segment: Option<Box<Segment>>,
}

struct Segment {
    neighbours: Neighbours,
    /// With the time until which each waits.
    waiting: VecDeque<(Instant, IpAddr, Mad)>,
}

impl Hops {
    pub fn new(config: &Config) -> Self {
        let segment = config.segment.clone().map(|segment| {
            Box::new(Segment { neighbours: Neighbours::new(segment), waiting: VecDeque::new() })
        });
        Hops { segment }
    }

    #[inline]
    pub fn neighbours(&self) -> Option<&Neighbours> {
        self.segment.as_ref().map(|segment| &segment.neighbours)
    }

    #[inline]
    pub fn neighbours_mut(&mut self) -> Option<&mut Neighbours> {
        self.segment.as_mut().map(|segment| &mut segment.neighbours)
    }

    /// Looks `ip` up without starting a resolution.
    pub fn look_up(&self, config: &Config, ip: IpAddr) -> Resolution {
        match (configured(config, ip), self.neighbours()) {
            (Some(mac), _) => Resolution::Known(mac),
            (None, Some(neighbours)) => neighbours.look_up(ip),
            (None, None) => Resolution::Known(derived(ip)),
        }
    }

    /// Looks `ip` up, and starts a resolution if necessary.
    pub fn ask(&mut self, now: Instant, config: &Config, ip: IpAddr) -> Resolution {
        match (configured(config, ip), self.neighbours_mut()) {
            (Some(mac), _) => Resolution::Known(mac),
            (None, Some(neighbours)) => neighbours.ask(now, ip),
            (None, None) => Resolution::Known(derived(ip)),
        }
    }

    /// The hop to `ip`, which stays resolved until it is released.
    pub fn hold(&mut self, now: Instant, config: &Config, ip: IpAddr) -> Result<Hop, VerbsError> {
        match self.ask(now, config, ip) {
            Resolution::Known(mac) => {
                let is_configured = configured(config, ip).is_some();
                let neighbours = self.neighbours_mut().filter(|_| !is_configured);
                let held = neighbours.and_then(|neighbours| neighbours.hold(now, ip));
                Ok(Hop { mac, id: held.map(|(id, _)| id) })
            }
            Resolution::Asking => Err(VerbsError::Unresolved { ip, reason: "not known yet" }),
            Resolution::Failed(failure) => {
                Err(VerbsError::Unresolved { ip, reason: failure.reason() })
            }
        }
    }

    pub fn release(&mut self, id: Option<HopId>) {
        if let (Some(id), Some(neighbours)) = (id, self.neighbours_mut()) {
            neighbours.release(id);
        }
    }

    /// Notes the source of a management datagram as a neighbour, so that it can be answered.
    pub fn heard(&mut self, now: Instant, packet: &Packet<'_>) {
        if let Some(neighbours) = self.neighbours_mut() {
            neighbours.heard(now, packet.source_ip(), packet.path().source_mac);
        }
    }

    /// Handles a frame that is not RoCEv2. Returns `true` if it belonged to neighbour discovery.
    pub fn take(&mut self, now: Instant, frame: &Frame<'_>) -> bool {
        let is_whole = frame.payload.is_empty();
        self.neighbours_mut()
            .is_some_and(|neighbours| neighbours.handle_frame(now, frame.head, is_whole))
    }

    #[inline]
    pub fn has_pending(&self) -> bool {
        self.segment.as_ref().is_some_and(|s| s.neighbours.has_frames() || !s.waiting.is_empty())
    }

    /// Holds a management datagram until its peer is resolved.
    pub fn wait(&mut self, now: Instant, to: IpAddr, mad: &Mad) {
        if let Some(segment) = &mut self.segment {
            segment.waiting.retain(|(until, ..)| now < *until);
            if segment.waiting.len() < WAITING_MAX {
                segment.waiting.push_back((now + WAIT, to, *mad));
            }
        }
    }

    /// Returns a management datagram whose peer is resolved. Drops those whose peer does not
    /// answer, and those that have waited too long: the peer's resolution may be repeated
    /// indefinitely, or abandoned.
    pub fn next_ready(&mut self, now: Instant, config: &Config) -> Option<(IpAddr, MacAddr, Mad)> {
        let Segment { neighbours, waiting } = &mut **self.segment.as_mut()?;
        let look_up =
            |ip| configured(config, ip).map_or_else(|| neighbours.look_up(ip), Resolution::Known);
        waiting.retain(|(until, to, _)| {
            now < *until && !matches!(look_up(*to), Resolution::Failed(_))
        });
        let ready =
            |(_, to, _): &(Instant, IpAddr, Mad)| matches!(look_up(*to), Resolution::Known(_));
        let (_, to, mad) = waiting.remove(waiting.iter().position(ready)?)?;
        match look_up(to) {
            Resolution::Known(mac) => Some((to, mac, mad)),
            Resolution::Asking | Resolution::Failed(_) => None,
        }
    }
}

/// MAC address of `ip` if it is a group or configured.
fn configured(config: &Config, ip: IpAddr) -> Option<MacAddr> {
    let known = || config.neighbours.iter().find(|(known, _)| known.to_canonical() == ip);
    multicast_mac(ip).or_else(|| known().map(|(_, mac)| *mac))
}

/// MAC address of a peer without a segment: 02:00 and the last four bytes of the IP address.
fn derived(ip: IpAddr) -> MacAddr {
    let [a, b, c, d] = match ip {
        IpAddr::V4(ip) => ip.octets(),
        IpAddr::V6(ip) => {
            let [.., a, b, c, d] = ip.octets();
            [a, b, c, d]
        }
    };
    MacAddr([2, 0, a, b, c, d])
}

/// Sends a frame of neighbour discovery.
pub(crate) fn emit(frame: &Outgoing, emit: &mut impl Emit) {
    emit.emit(&Frame { head: frame.bytes(), payload: Payload::EMPTY, trailer: Trailer::None });
}

impl<M: Memory> Rnic<M> {
    /// Starts to resolve the first hop to `ip` if it is unknown or stale, and returns its state.
    /// Any result but [`Resolution::Asking`] is final; without [`crate::Config::segment`] every
    /// peer is resolved. A state change or an address handle that names a peer requires it
    /// resolved.
    pub fn resolve(&mut self, now: Instant, ip: IpAddr) -> Resolution {
        self.hops.ask(now, &self.config, ip.to_canonical())
    }

    /// Like [`Rnic::resolve`], without starting a resolution: for polling its progress.
    pub fn resolution(&self, ip: IpAddr) -> Resolution {
        self.hops.look_up(&self.config, ip.to_canonical())
    }

    /// The neighbour table of the segment; `None` without [`crate::Config::segment`].
    pub fn neighbours(&self) -> Option<&Neighbours> {
        self.hops.neighbours()
    }

    /// The same, mutably: to announce the port's address, and to answer solicitations that the
    /// owner receives.
    pub fn neighbours_mut(&mut self) -> Option<&mut Neighbours> {
        self.hops.neighbours_mut()
    }

    /// Updates QPs and address handles whose neighbours' Ethernet addresses have changed. Call it
    /// after [`Neighbours::answer`]; changes learnt from frames are applied automatically.
    #[cold]
    pub fn follow_neighbours(&mut self) {
        while let Some((id, mac)) = self.hops.neighbours_mut().and_then(Neighbours::poll_change) {
            for qp in self.qps.iter_mut().flatten().filter(|qp| qp.hop == Some(id)) {
                qp.template.set_destination_mac(mac);
            }
            for handle in self.env.ahs.iter_mut().filter(|handle| handle.hop == Some(id)) {
                handle.template.set_destination_mac(mac);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Failure, SegmentAddress, SegmentAsks};

    fn look_up(config: &Config, ip: &str) -> Resolution {
        Hops::new(config).look_up(config, ip.parse().unwrap())
    }

    #[test]
    fn without_a_segment_neighbours_follow_their_address() {
        let mut config = Config::new(MacAddr::default(), IpAddr::from([10, 77, 0, 1]));
        let known = |bytes| Resolution::Known(MacAddr(bytes));
        assert_eq!(look_up(&config, "10.77.0.2"), known([2, 0, 10, 77, 0, 2]));
        assert_eq!(look_up(&config, "239.255.1.2"), known([1, 0, 0x5e, 0x7f, 1, 2]));
        config.neighbours.push((IpAddr::from([10, 77, 0, 2]), MacAddr([2; 6])));
        assert_eq!(look_up(&config, "10.77.0.2"), known([2; 6]));
    }

    /// Whether a datagram is still sent if the resolution of its peer starts at 0 s, fails, is
    /// repeated, and succeeds at `ms`.
    fn waits(ms: u64) -> bool {
        let [us, peer] = [1, 2].map(|n| IpAddr::from([10, 77, 0, n]));
        let mut config = Config::new(MacAddr::default(), us);
        let address = SegmentAddress { ip: us, prefix_len: 24 };
        let segment = longhaul_neighbour::Config::new(MacAddr::default(), address);
        config.segment = Some(longhaul_neighbour::Config { asks: SegmentAsks::Owner, ..segment });
        let mut hops = Hops::new(&config);
        let begun = Instant::from_ns(1);
        hops.ask(begun, &config, peer);
        hops.wait(begun, peer, &[7; longhaul_wire::mad::MAD_LEN]);
        assert!(hops.next_ready(begun, &config).is_none() && hops.has_pending());
        hops.neighbours_mut().unwrap().answer(begun, peer, Err(Failure::NoAnswer));
        assert_eq!(hops.ask(begun, &config, peer), Resolution::Asking);
        let now = begun + Duration::from_ms(ms);
        hops.neighbours_mut().unwrap().answer(now, peer, Ok(MacAddr([2; 6])));
        let found = hops.next_ready(now, &config);
        assert!(
            hops.next_ready(now, &config).is_none() && hops.segment.unwrap().waiting.is_empty()
        );
        found.is_some()
    }

    #[test]
    fn a_management_datagram_waits_no_longer_than_its_peer_is_asked_for() {
        assert!(waits(2_999));
        assert!(!waits(3_000));
    }
}
