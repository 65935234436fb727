//! The fabric between the hosts of a lab: a wire between two hosts, or a switch at each end of it.

use crate::spec::HostName;
use longhaul_link::Link;
use longhaul_node::{Chain, Deadline, Frame, Mirrored, Node, Side, Transmit};
use longhaul_switch::{PortCounters, Switch, SwitchConfig, SwitchError};
use longhaul_units::Instant;
use longhaul_wan_box::WanBox;

/// Side 0 leads to the first site. Each box's LAN side faces its own site.
pub type Wire = Chain<WanBox, Chain<Link, Mirrored<WanBox>>>;

/// A node with one side per host, in the order of the hosts.
#[expect(clippy::large_enum_variant, reason = "a lab has one, and an unboxed wire saves a pointer")]
pub enum Fabric {
    /// Two hosts at the ends of the wire.
    Direct(Wire),
    /// More than two.
    Switched(Box<Sites<Wire>>),
}

impl Fabric {
    /// The wire.
    pub fn wire(&self) -> &Wire {
        match self {
            Fabric::Direct(wire) => wire,
            Fabric::Switched(sites) => &sites.wire,
        }
    }

    /// The switches, if there are any.
    pub fn sites(&self) -> Option<&Sites<Wire>> {
        match self {
            Fabric::Direct(_) => None,
            Fabric::Switched(sites) => Some(sites),
        }
    }
}

impl Node for Fabric {
    #[inline]
    fn handle_frame(&mut self, now: Instant, side: Side, frame: &Frame<'_>) {
        match self {
            Fabric::Direct(wire) => wire.handle_frame(now, side, frame),
            Fabric::Switched(sites) => sites.handle_frame(now, side, frame),
        }
    }

    #[inline]
    fn handle_timeout(&mut self, now: Instant) {
        match self {
            Fabric::Direct(wire) => wire.handle_timeout(now),
            Fabric::Switched(sites) => sites.handle_timeout(now),
        }
    }

    #[inline]
    fn poll_transmit(&mut self, now: Instant, out: &mut dyn Transmit) {
        match self {
            Fabric::Direct(wire) => wire.poll_transmit(now, out),
            Fabric::Switched(sites) => sites.poll_transmit(now, out),
        }
    }

    #[inline]
    fn poll_timeout(&self) -> Option<Deadline> {
        match self {
            Fabric::Direct(wire) => wire.poll_timeout(),
            Fabric::Switched(sites) => sites.poll_timeout(),
        }
    }
}

/// Frames that a switch and the wire pass to each other before the other one runs.
const BATCH: usize = 64;
/// Rounds of passing frames back and forth per call.
const ROUNDS_MAX: usize = 64;

/// Two sites with one switch each, joined by `wire`, whose side 0 faces the first site.
///
/// A switch has its site's hosts on its first ports, in order, and the wire on the next one.
pub struct Sites<W> {
    switches: [Switch; 2],
    wire: W,
    hosts: usize,
    /// Time at which a call left work over because it reached the limit of rounds.
    unfinished_at: Option<Instant>,
}

/// A port of one site's switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SitePort {
    Host(HostName),
    Wire,
}

/// Port of `host` at its site's switch.
fn port_of(host: HostName) -> Side {
    host.index() / 2
}

/// Number of hosts at `site` of a lab of `hosts`.
fn hosts_at(site: usize, hosts: usize) -> usize {
    (hosts + 1 - site) / 2
}

impl<W: Node> Sites<W> {
    /// Sites for `hosts` hosts, at least 3, whose addresses the switches know. Ignores the number
    /// of ports in `config`; each switch has its own seed.
    pub fn new(hosts: usize, config: &SwitchConfig, wire: W) -> Result<Self, SwitchError> {
        let site = |site: usize| {
            let uplink = hosts_at(site, hosts);
            let seed = config.seed.wrapping_add(site as u64);
            let mut switch =
                Switch::new(SwitchConfig { ports: uplink + 1, seed, ..config.clone() })?;
            for host in (0..hosts).map(HostName::of_index) {
                let port = if host.site() == site { port_of(host) } else { uplink };
                switch.add_static(host.mac(), port)?;
            }
            Ok::<_, SwitchError>(switch)
        };
        Ok(Sites { switches: [site(0)?, site(1)?], wire, hosts, unfinished_at: None })
    }

    /// Counters of each port of the switch at `site`, 0 or 1.
    pub fn ports(&self, site: usize) -> impl Iterator<Item = (SitePort, PortCounters)> {
        let hosts = hosts_at(site, self.hosts);
        (0..=hosts).map(move |port| {
            let name = if port == hosts {
                SitePort::Wire
            } else {
                SitePort::Host(HostName::of_index(2 * port + site))
            };
            (name, self.switches[site].counters(port))
        })
    }
}

/// Sink of the frames of the switch at `site`.
struct FromSwitch<'a, W> {
    now: Instant,
    site: usize,
    uplink: Side,
    wire: &'a mut W,
    /// Frames that the wire accepts in this round.
    room: usize,
    out: &'a mut dyn Transmit,
}

impl<W: Node> Transmit for FromSwitch<'_, W> {
    #[inline]
    fn room(&mut self, port: Side) -> usize {
        if port == self.uplink { self.room } else { self.out.room(2 * port + self.site) }
    }

    #[inline]
    fn transmit(&mut self, port: Side, frame: &Frame<'_>) {
        if port != self.uplink {
            return self.out.transmit(2 * port + self.site, frame);
        }
        self.room = self.room.saturating_sub(1);
        self.wire.handle_frame(self.now, self.site, frame);
    }
}

/// Sink of the frames of the wire: the site's switch.
struct FromWire<'a> {
    now: Instant,
    switches: &'a mut [Switch; 2],
    uplinks: [Side; 2],
    /// Frames that the switches accept in this round.
    room: usize,
}

impl Transmit for FromWire<'_> {
    #[inline]
    fn room(&mut self, _site: Side) -> usize {
        self.room
    }

    #[inline]
    fn transmit(&mut self, site: Side, frame: &Frame<'_>) {
        self.room = self.room.saturating_sub(1);
        self.switches[site].handle_frame(self.now, self.uplinks[site], frame);
    }
}

impl<W: Node> Node for Sites<W> {
    /// Handles a frame from host number `side`.
    #[inline]
    fn handle_frame(&mut self, now: Instant, side: Side, frame: &Frame<'_>) {
        self.switches[side % 2].handle_frame(now, side / 2, frame);
    }

    fn handle_timeout(&mut self, now: Instant) {
        for switch in &mut self.switches {
            switch.handle_timeout(now);
        }
        self.wire.handle_timeout(now);
    }

    fn poll_transmit(&mut self, now: Instant, out: &mut dyn Transmit) {
        self.unfinished_at = None;
        let uplinks = [0, 1].map(|site| hosts_at(site, self.hosts));
        for _ in 0..ROUNDS_MAX {
            let mut passed = 0;
            for (site, switch) in self.switches.iter_mut().enumerate() {
                let (uplink, wire, room) = (uplinks[site], &mut self.wire, BATCH);
                let mut from = FromSwitch { now, site, uplink, wire, room, out: &mut *out };
                switch.poll_transmit(now, &mut from);
                passed += BATCH - from.room;
            }
            let mut from = FromWire { now, switches: &mut self.switches, uplinks, room: BATCH };
            self.wire.poll_transmit(now, &mut from);
            passed += BATCH - from.room;
            if passed == 0 {
                return;
            }
        }
        self.unfinished_at = Some(now);
    }

    fn poll_timeout(&self) -> Option<Deadline> {
        let [first, second] = &self.switches;
        let switches = Deadline::earliest(first.poll_timeout(), second.poll_timeout());
        let unfinished =
            self.unfinished_at.map(|at| Deadline { at, reason: "frames between switch and wire" });
        Deadline::earliest(Deadline::earliest(switches, self.wire.poll_timeout()), unfinished)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use longhaul_link::LinkConfig;
    use longhaul_node::{Payload, Trailer};
    use longhaul_units::{BitRate, Duration};
    use longhaul_wire::MacAddr;

    const HOSTS: usize = 5;

    fn host(index: usize) -> HostName {
        HostName::of_index(index)
    }

    fn sites() -> Sites<Link> {
        let rate = BitRate::from_gbps(10).unwrap();
        let config = SwitchConfig::new(2, rate);
        Sites::new(HOSTS, &config, Link::new(LinkConfig::fibre_km(100, rate)).unwrap()).unwrap()
    }

    fn send(sites: &mut Sites<Link>, now: Instant, from: usize, to: MacAddr) {
        let mut head = [0; 54];
        head[..6].copy_from_slice(&to.0);
        head[6..12].copy_from_slice(&host(from).mac().0);
        let payload = Payload::Synthetic { len: 1000 };
        sites.handle_frame(now, from, &Frame { head: &head, payload, trailer: Trailer::None });
    }

    struct Arrivals {
        now: Instant,
        at: Vec<(Side, Duration)>,
    }

    impl Transmit for Arrivals {
        fn room(&mut self, _: Side) -> usize {
            64
        }
        fn transmit(&mut self, side: Side, _: &Frame<'_>) {
            self.at.push((side, self.now.since(Instant::ZERO)));
        }
    }

    fn drain(sites: &mut Sites<Link>) -> Vec<(Side, Duration)> {
        let mut out = Arrivals { now: Instant::ZERO, at: Vec::new() };
        while let Some(deadline) = sites.poll_timeout() {
            assert!(deadline.at > out.now || out.now == Instant::ZERO, "time goes on");
            out.now = deadline.at;
            sites.handle_timeout(out.now);
            sites.poll_transmit(out.now, &mut out);
        }
        out.at
    }

    #[test]
    fn every_host_reaches_every_other_over_the_fibre_or_not() {
        for from in 0..HOSTS {
            for to in (0..HOSTS).filter(|to| *to != from) {
                let mut sites = sites();
                send(&mut sites, Instant::ZERO, from, host(to).mac());
                let arrivals = drain(&mut sites);
                assert_eq!(arrivals.len(), 1, "{from} to {to}");
                let (side, delay) = arrivals[0];
                assert_eq!(side, to);
                let crosses = from % 2 != to % 2;
                assert_eq!(delay >= Duration::from_us(500), crosses, "{from} to {to} in {delay}");
            }
        }
    }

    #[test]
    fn a_group_reaches_every_other_host_once() {
        let mut sites = sites();
        send(&mut sites, Instant::ZERO, 1, MacAddr([0x01, 0, 0x5e, 1, 2, 3]));
        let mut reached: Vec<Side> = drain(&mut sites).into_iter().map(|(side, _)| side).collect();
        reached.sort_unstable();
        assert_eq!(reached, [0, 2, 3, 4]);
    }

    #[test]
    fn a_burst_longer_than_a_round_passes_whole() {
        let mut sites = sites();
        for _ in 0..5000 {
            send(&mut sites, Instant::ZERO, 0, host(1).mac());
        }
        let mut out = Arrivals { now: Instant::ZERO + Duration::from_ms(100), at: Vec::new() };
        // A driver loop that was delayed finds all frames due at once.
        for _ in 0..100 {
            sites.poll_transmit(out.now, &mut out);
            out.now += Duration::from_ms(1);
        }
        assert_eq!(out.at.len(), 5000);
        let (first, _) = sites.ports(0).next().unwrap();
        assert_eq!(first, SitePort::Host(HostName::A));
        let names: Vec<SitePort> = sites.ports(1).map(|(name, _)| name).collect();
        assert_eq!(names, [SitePort::Host(host(1)), SitePort::Host(host(3)), SitePort::Wire]);
    }
}
