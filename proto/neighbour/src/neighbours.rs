//! The address resolution state machine.

use crate::message::{Arp, BROADCAST, Malformed, Message, is_unicast, multicast_mac};
use crate::table::{Phase, Table};
use crate::{Asks, Config, Failure, HopId, Outgoing, Resolution};
use longhaul_node::Deadline;
use longhaul_units::{Duration, Instant};
use longhaul_wire::MacAddr;
use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Maximum queued replies; requesters without a reply retry.
const ANSWERS_MAX: usize = 64;
/// Time between a probe for an address and its announcement, in which another owner can object.
/// Much shorter than in RFC 5227, because the address is used meanwhile.
const PROBE_WAIT: Duration = Duration::from_ms(200);

/// Free-running counters.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Requests sent, or passed to the owner.
    pub asked: u64,
    /// Answered requests for our own addresses.
    pub answered: u64,
    /// Requests without a reply after all tries.
    pub unanswered: u64,
    /// Neighbours whose Ethernet address changed.
    pub changed: u64,
    /// Ignored changes: too soon after the previous one, or without the override flag.
    pub changes_ignored: u64,
    /// Replies dropped because the queue was full.
    pub answers_dropped: u64,
    /// Malformed messages.
    pub malformed: u64,
    /// Messages of other hosts that use one of our addresses.
    pub conflicts: u64,
}

/// A frame about our own addresses.
#[derive(Clone, Copy, Debug)]
enum Answer {
    Arp { own: Ipv4Addr, to: (Ipv4Addr, MacAddr) },
    Discovery { own: Ipv6Addr, to: Option<(Ipv6Addr, MacAddr)> },
    Probe(IpAddr),
    Announcement(Ipv4Addr),
}

/// Resolves Ethernet addresses of neighbours, and answers for our own.
#[derive(Debug)]
pub struct Neighbours {
    config: Config,
    table: Table,
    /// Entries with a due request, or a request that has become obsolete: each at most once. A flag
    /// in the entry tells whether it is queued, so that the cost per entry is constant.
    questions: VecDeque<HopId>,
    answers: VecDeque<Answer>,
    /// Held entries whose Ethernet address has changed.
    changes: VecDeque<HopId>,
    /// Unsolicited entries, oldest first.
    heard: VecDeque<HopId>,
    announce_at: Option<Instant>,
    conflict: Option<(IpAddr, MacAddr)>,
    counters: Counters,
}

impl Neighbours {
    /// Creates an empty table.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Neighbours {
            table: Table::new(config.entries_max),
            questions: VecDeque::new(),
            answers: VecDeque::new(),
            changes: VecDeque::new(),
            heard: VecDeque::new(),
            announce_at: None,
            conflict: None,
            counters: Counters::default(),
            config,
        }
    }

    /// The configuration.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The counters.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Returns whether there are no entries.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The last address conflict since the last [`Neighbours::announce`]: our address, and the
    /// other host.
    #[must_use]
    pub fn conflict(&self) -> Option<(IpAddr, MacAddr)> {
        self.conflict
    }

    /// Returns the resolution of `ip`, without sending a request: an address without an entry is
    /// [`Resolution::Asking`].
    #[must_use]
    pub fn look_up(&self, ip: IpAddr) -> Resolution {
        if let Some(mac) = self.without_asking(ip) {
            return Resolution::Known(mac);
        }
        let Some(hop) = self.config.next_hop(ip) else {
            return Resolution::Failed(Failure::NoRoute);
        };
        let entry = self.table.find(hop).and_then(|id| self.table.get(id));
        entry.map_or(Resolution::Asking, |entry| entry.resolution())
    }

    /// The same, and starts a request if the address is unknown or stale.
    pub fn ask(&mut self, now: Instant, ip: IpAddr) -> Resolution {
        if let Some(mac) = self.without_asking(ip) {
            return Resolution::Known(mac);
        }
        let id = match self.entry(now, ip) {
            Ok(id) => id,
            Err(failure) => return Resolution::Failed(failure),
        };
        self.table.get(id).map_or(Resolution::Asking, |entry| entry.resolution())
    }

    /// As [`Neighbours::ask`], and holds the entry of a known address until
    /// [`Neighbours::release`]. `None` while it is unknown, and for groups and our own addresses,
    /// which have no entry.
    pub fn hold(&mut self, now: Instant, ip: IpAddr) -> Option<(HopId, MacAddr)> {
        if self.without_asking(ip).is_some() {
            return None;
        }
        let id = self.entry(now, ip).ok()?;
        let entry = self.table.get_mut(id)?;
        let Resolution::Known(mac) = entry.resolution() else { return None };
        entry.holders += 1;
        Some((id, mac))
    }

    /// Undoes one [`Neighbours::hold`].
    pub fn release(&mut self, id: HopId) {
        if let Some(entry) = self.table.get_mut(id) {
            entry.holders = entry.holders.saturating_sub(1);
        }
    }

    /// Records the source of a valid packet from an unknown neighbour, so that replies can go to
    /// its Ethernet address until it is resolved. Only for neighbours on our own networks: other
    /// packets come from a gateway.
    pub fn heard(&mut self, now: Instant, ip: IpAddr, mac: MacAddr) {
        let is_neighbour = self.config.is_on_link(ip) && !ip.is_unspecified() && is_unicast(mac);
        if !is_neighbour || self.without_asking(ip).is_some() || self.table.find(ip).is_some() {
            return;
        }
        if self.heard.len() >= self.config.heard_max || self.table.is_full() {
            let Some(oldest) = self.heard.front().copied() else { return };
            self.forget(oldest);
        }
        let id = self.table.insert(now, ip, Phase::Stale, Some(mac));
        if let Some(entry) = self.table.get_mut(id) {
            entry.is_heard = true;
            self.heard.push_back(id);
        }
    }

    /// Probes our addresses, and announces them shortly afterwards unless another host objects. For
    /// a port that has just come up.
    pub fn announce(&mut self, now: Instant) {
        if self.config.asks == Asks::Owner {
            return;
        }
        self.conflict = None;
        for at in 0..self.config.addresses.len() {
            self.say(Answer::Probe(self.config.addresses[at].ip));
        }
        self.announce_at = Some(now + PROBE_WAIT);
    }

    /// Handles a received frame: its leading bytes, and whether there are more. Returns `false` if
    /// it is not a message of these protocols.
    pub fn handle_frame(&mut self, now: Instant, head: &[u8], is_whole: bool) -> bool {
        if self.config.asks == Asks::Owner {
            return false;
        }
        let message = match Message::parse(head, self.config.vlan) {
            Ok(Some(message)) => message,
            Ok(None) => return false,
            // A message that extends beyond the head cannot be checked; no host sends one.
            Err(Malformed) => {
                self.counters.malformed += u64::from(is_whole);
                return true;
            }
        };
        match message {
            Message::Arp(arp) => self.on_arp(now, &arp),
            Message::Solicitation { source, mac, target } => {
                self.on_solicitation(now, source, mac, target)
            }
            Message::Advertisement { target, mac: Some(mac), overrides } => {
                self.on_claim(now, target.into(), mac, overrides);
            }
            Message::Advertisement { mac: None, .. } => {}
        }
        true
    }

    /// Processes due timers.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.announce_at.is_some_and(|at| at <= now) {
            self.announce_at = None;
            if self.conflict.is_none() {
                self.tell_everybody();
            }
        }
        while let Some(id) = self.table.pop_due(now) {
            let Some(entry) = self.table.get_mut(id) else { continue };
            match entry.phase {
                Phase::Fresh if entry.holders == 0 => entry.phase = Phase::Stale,
                Phase::Failed(_) if entry.holders == 0 => {}
                Phase::Fresh | Phase::Failed(_) => self.begin(now, id),
                Phase::Asking { .. } => self.try_again(now, id),
                Phase::Stale => {}
            }
        }
    }

    /// The next deadline for [`Neighbours::handle_timeout`].
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Deadline> {
        let entry = self.table.next_due().map(|at| Deadline { at, reason: "neighbour's address" });
        let own = self.announce_at.map(|at| Deadline { at, reason: "announcing our address" });
        Deadline::earliest(entry, own)
    }

    /// Returns whether [`Neighbours::poll_frame`] may return a frame.
    #[must_use]
    pub fn has_frames(&self) -> bool {
        !self.answers.is_empty()
            || (self.config.asks == Asks::Segment && !self.questions.is_empty())
    }

    /// Returns the next frame to send; our own requests first.
    pub fn poll_frame(&mut self) -> Option<Outgoing> {
        while self.config.asks == Asks::Segment
            && let Some(id) = self.next_question()
        {
            if let Some(frame) = self.question(id) {
                self.counters.asked += 1;
                return Some(frame);
            }
        }
        let answer = self.answers.pop_front()?;
        Some(self.answer_frame(answer))
    }

    /// Returns the next peer for the owner to resolve; always `None` with [`Asks::Segment`].
    pub fn poll_question(&mut self) -> Option<IpAddr> {
        if self.config.asks == Asks::Segment {
            return None;
        }
        let id = self.next_question()?;
        self.counters.asked += 1;
        self.table.get(id).map(|entry| entry.ip)
    }

    /// Takes the next entry with a due request.
    fn next_question(&mut self) -> Option<HopId> {
        while let Some(id) = self.questions.pop_front() {
            let Some(entry) = self.table.get_mut(id) else { continue };
            entry.is_queued = false;
            if std::mem::take(&mut entry.is_asked_for) {
                return Some(id);
            }
        }
        None
    }

    /// Records the owner's answer about a requested peer; ignores others.
    pub fn answer(&mut self, now: Instant, ip: IpAddr, found: Result<MacAddr, Failure>) {
        let Some(id) = self.table.find(ip) else { return };
        match found {
            Ok(mac) => self.learn(now, id, mac, true),
            Err(failure) => self.fail(now, id, failure),
        }
    }

    /// Returns the next held entry whose Ethernet address has changed.
    pub fn poll_change(&mut self) -> Option<(HopId, MacAddr)> {
        loop {
            let id = self.changes.pop_front()?;
            if let Some(mac) = self.table.get(id).and_then(|entry| entry.mac) {
                return Some((id, mac));
            }
        }
    }

    fn without_asking(&self, ip: IpAddr) -> Option<MacAddr> {
        multicast_mac(ip).or_else(|| self.config.is_ours(ip).then_some(self.config.mac))
    }

    /// Returns the entry of the next hop to `ip`, and starts a request if needed.
    fn entry(&mut self, now: Instant, ip: IpAddr) -> Result<HopId, Failure> {
        let hop = self.config.next_hop(ip).ok_or(Failure::NoRoute)?;
        let id = match self.table.find(hop) {
            Some(id) => id,
            None => {
                self.make_room()?;
                let id = self.table.insert(now, hop, Phase::Stale, None);
                self.begin(now, id);
                id
            }
        };
        if let Some(entry) = self.table.get_mut(id) {
            entry.used_at = now;
            let begins = matches!(entry.phase, Phase::Stale | Phase::Failed(_));
            if std::mem::take(&mut entry.is_heard) {
                self.heard.retain(|&heard| heard != id);
            }
            if begins {
                self.begin(now, id);
            }
        }
        Ok(id)
    }

    fn make_room(&mut self) -> Result<(), Failure> {
        if self.table.is_full() {
            let victim = self.heard.front().copied().or_else(|| self.table.idlest());
            self.forget(victim.ok_or(Failure::TableFull)?);
        }
        Ok(())
    }

    fn forget(&mut self, id: HopId) {
        if self.table.get(id).is_some_and(|entry| entry.is_queued) {
            self.questions.retain(|&queued| queued != id);
        }
        self.table.remove(id);
        for queue in [&mut self.changes, &mut self.heard] {
            queue.retain(|&queued| queued != id);
        }
    }

    fn begin(&mut self, now: Instant, id: HopId) {
        if let Some(entry) = self.table.get_mut(id) {
            entry.phase = Phase::Asking { tries: self.config.tries.max(1) };
            self.try_again(now, id);
        }
    }

    fn try_again(&mut self, now: Instant, id: HopId) {
        let Some(entry) = self.table.get_mut(id) else { return };
        let Phase::Asking { tries } = &mut entry.phase else { return };
        if *tries == 0 {
            self.counters.unanswered += 1;
            self.fail(now, id, Failure::NoAnswer);
            return;
        }
        *tries -= 1;
        entry.is_asked_for = true;
        if !std::mem::replace(&mut entry.is_queued, true) {
            self.questions.push_back(id);
        }
        self.table.set_due(id, Some(now + self.config.try_interval));
    }

    fn fail(&mut self, now: Instant, id: HopId, failure: Failure) {
        let Some(entry) = self.table.get_mut(id) else { return };
        entry.mac = None;
        entry.phase = Phase::Failed(failure);
        entry.is_asked_for = false;
        // Holders keep the last known address; retry later.
        let again = (entry.holders > 0).then_some(now + self.config.fresh);
        self.table.set_due(id, again);
    }

    /// Updates an entry's Ethernet address to `mac`.
    fn learn(&mut self, now: Instant, id: HopId, mac: MacAddr, overrides: bool) {
        let Some(entry) = self.table.get_mut(id) else { return };
        if entry.mac != Some(mac) {
            let is_settled =
                entry.phase != Phase::Fresh || now.since(entry.changed_at) >= self.config.settle;
            if entry.mac.is_some() && !(overrides && is_settled) {
                self.counters.changes_ignored += 1;
                return;
            }
            self.counters.changed += u64::from(entry.mac.is_some());
            entry.mac = Some(mac);
            entry.changed_at = now;
            if entry.holders > 0 && !self.changes.contains(&id) {
                self.changes.push_back(id);
            }
        }
        entry.phase = Phase::Fresh;
        entry.is_asked_for = false;
        self.table.set_due(id, Some(now + self.config.fresh));
    }

    fn on_arp(&mut self, now: Instant, arp: &Arp) {
        if arp.sender_mac == self.config.mac {
            return;
        }
        if !arp.sender_ip.is_unspecified() {
            self.on_claim(now, arp.sender_ip.into(), arp.sender_mac, true);
        }
        let is_ours = self.config.is_ours(arp.target_ip.into());
        if !arp.is_reply && is_ours && !self.config.is_ours(arp.sender_ip.into()) {
            self.say(Answer::Arp { own: arp.target_ip, to: (arp.sender_ip, arp.sender_mac) });
            self.counters.answered += 1;
        }
    }

    fn on_solicitation(&mut self, now: Instant, source: Ipv6Addr, mac: MacAddr, target: Ipv6Addr) {
        if mac == self.config.mac {
            return;
        }
        if !source.is_unspecified() {
            self.on_claim(now, source.into(), mac, true);
        }
        if self.config.is_ours(target.into()) && !self.config.is_ours(source.into()) {
            let to = (!source.is_unspecified()).then_some((source, mac));
            self.say(Answer::Discovery { own: target, to });
            self.counters.answered += 1;
        }
    }

    /// Handles a message that claims `ip` for `mac`.
    fn on_claim(&mut self, now: Instant, ip: IpAddr, mac: MacAddr, overrides: bool) {
        if self.config.is_ours(ip) {
            if mac != self.config.mac {
                self.counters.conflicts += 1;
                self.conflict = Some((ip, mac));
            }
        } else if let Some(id) = self.table.find(ip) {
            self.learn(now, id, mac, overrides);
        }
    }

    fn say(&mut self, answer: Answer) {
        if self.answers.len() < ANSWERS_MAX {
            self.answers.push_back(answer);
        } else {
            self.counters.answers_dropped += 1;
        }
    }

    fn tell_everybody(&mut self) {
        for at in 0..self.config.addresses.len() {
            self.say(match self.config.addresses[at].ip {
                IpAddr::V4(own) => Answer::Announcement(own),
                IpAddr::V6(own) => Answer::Discovery { own, to: None },
            });
        }
    }

    /// Returns the request for an entry: first to its last known address, then to all.
    fn question(&self, id: HopId) -> Option<Outgoing> {
        let entry = self.table.get(id)?;
        let Phase::Asking { tries } = entry.phase else { return None };
        let is_first = tries + 1 >= self.config.tries;
        let to = entry.mac.filter(|_| is_first);
        let (mac, vlan) = (self.config.mac, self.config.vlan);
        match (entry.ip, self.config.source_for(entry.ip)?) {
            (IpAddr::V4(target), IpAddr::V4(own)) => Some(arp_question(mac, own, target, to, vlan)),
            (IpAddr::V6(target), IpAddr::V6(own)) => {
                Some(Outgoing::solicitation((own, mac), target, to, vlan))
            }
            _ => None,
        }
    }

    fn answer_frame(&self, answer: Answer) -> Outgoing {
        let (mac, vlan) = (self.config.mac, self.config.vlan);
        match answer {
            Answer::Arp { own, to: (target_ip, target_mac) } => {
                let arp =
                    Arp { is_reply: true, sender_mac: mac, sender_ip: own, target_mac, target_ip };
                Outgoing::arp(target_mac, vlan, &arp)
            }
            Answer::Discovery { own, to } => Outgoing::advertisement((own, mac), to, vlan),
            Answer::Probe(IpAddr::V4(own)) => {
                arp_question(mac, Ipv4Addr::UNSPECIFIED, own, None, vlan)
            }
            Answer::Probe(IpAddr::V6(own)) => {
                Outgoing::solicitation((Ipv6Addr::UNSPECIFIED, mac), own, None, vlan)
            }
            Answer::Announcement(own) => arp_question(mac, own, own, None, vlan),
        }
    }
}

fn arp_question(
    mac: MacAddr,
    own: Ipv4Addr,
    target_ip: Ipv4Addr,
    to: Option<MacAddr>,
    vlan: Option<u16>,
) -> Outgoing {
    let (sender_mac, sender_ip, target_mac) = (mac, own, MacAddr::default());
    let arp = Arp { is_reply: false, sender_mac, sender_ip, target_mac, target_ip };
    Outgoing::arp(to.unwrap_or(BROADCAST), vlan, &arp)
}
