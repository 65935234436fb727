//! HELLOs: the stateless handshake that finds far boxes and opens sessions.
//!
//! ask → answer with a cookie → open with that cookie → accept. A box that only asks, or only
//! answers, costs the other a bounded number of replies.

use crate::format::{DatagramKind, Header, Hello, HelloStep, Refusal, VERSION};
use crate::session::{Due, Open, Opening, Peer, Session};
use crate::shared::{Body, ControlDatagram};
use crate::transport::Transport;
use crate::{DropReason, Refused};
use longhaul_node::Side;
use longhaul_secret::TagKey;
use longhaul_units::{Duration, Instant};
use longhaul_wire::{Path, address_bits};

/// Minimum lifetime of a cookie.
const COOKIE_LIFE_NS: u64 = 10_000_000_000;

/// Cookie that proves that its holder receives datagrams sent to its address: a tag by `key` over
/// route and HELLO.
fn cookie(key: &TagKey, route: &Path, hello: &Hello, epoch: u64) -> u64 {
    let tag = key.tag(&[
        &epoch.to_be_bytes(),
        &address_bits(route.source_ip).to_be_bytes(),
        &address_bits(route.destination_ip).to_be_bytes(),
        // Larger than any VLAN tag: no VLAN.
        &route.vlan.map_or(1 << 16, u32::from).to_be_bytes(),
        &hello.box_id.to_be_bytes(),
        &hello.instance.to_be_bytes(),
        &hello.nonce.to_be_bytes(),
    ]);
    u64::from_be_bytes(tag.first_chunk().copied().unwrap_or_default())
}

/// Mark by which the asking box recognises that an answer comes from the far box of its session.
/// Both session numbers form its key, so it tells others nothing. 0 stands for no session.
fn mark(answerer: u32, asker: u32, nonce: u64) -> u32 {
    let key = TagKey::of(&[answerer.to_be_bytes(), asker.to_be_bytes()].concat());
    let tag = key.tag(&[&nonce.to_be_bytes()]);
    tag.first_chunk().map_or(1, |bytes| u32::from_be_bytes(*bytes)).max(1)
}

impl Transport {
    fn hello(&self, step: HelloStep, session: u32, nonce: u64, cookie: u64) -> Hello {
        let config = self.config();
        Hello {
            step,
            version_min: VERSION,
            version_max: VERSION,
            session,
            box_id: config.box_id,
            instance: self.instance,
            policy: config.policy,
            nonce,
            cookie,
            room_bytes: config.receive_bytes_max,
            paths: config.paths.len() as u8,
            cores: config.cores,
        }
    }

    fn post_hello(&mut self, side: Side, route: Path, session: u32, hello: Hello) {
        let header = Header::new(DatagramKind::Hello, session);
        self.shared.queue_control(ControlDatagram {
            side,
            route,
            header,
            body: Body::Hello(hello),
        });
    }

    /// Sends all HELLOs that are due.
    pub(crate) fn ask(&mut self, now: Instant) {
        while let Some(ask) = self.addresses.due(now) {
            self.shared.counters.hellos_sent += 1;
            let hello = self.hello(HelloStep::Ask, 0, ask.nonce, 0);
            self.post_hello(ask.side, ask.route, 0, hello);
        }
    }

    /// Handles a HELLO from `side`; `route` leads back to its sender.
    pub(crate) fn handle_hello(
        &mut self,
        now: Instant,
        side: Side,
        header: &Header,
        hello: &Hello,
        route: Path,
    ) {
        if hello.box_id == self.config().box_id {
            // This box's own HELLO, returned, or a HELLO of another box of the same number.
            return self.drop(DropReason::Unasked);
        }
        match hello.step {
            HelloStep::Ask | HelloStep::Open => self.handle_request(now, side, hello, route),
            HelloStep::Answer => self.handle_answer(now, side, hello, route),
            HelloStep::Accept => self.handle_accept(now, side, header, hello),
            HelloStep::Refuse(reason) => self.handle_refusal(now, hello, reason, route),
        }
    }

    fn handle_request(&mut self, now: Instant, side: Side, hello: &Hello, route: Path) {
        if !self.may_answer(now) {
            return self.drop(DropReason::TooManyQuestions);
        }
        self.shared.counters.answers_sent += 1;
        let refusal = if !(hello.version_min..=hello.version_max).contains(&VERSION) {
            Some(Refusal::Version)
        } else if hello.policy != self.config().policy {
            Some(Refusal::Policy)
        } else if !self.has_as_many_cores(hello) {
            Some(Refusal::Cores)
        } else {
            None
        };
        if let Some(reason) = refusal {
            self.note_refusal(hello, reason);
            let answer = self.hello(HelloStep::Refuse(reason), 0, hello.nonce, 0);
            return self.post_hello(side, route, hello.session, answer);
        }
        let epoch = now.as_ns() / COOKIE_LIFE_NS;
        if hello.step == HelloStep::Ask {
            let asker = Peer { box_id: hello.box_id, instance: hello.instance };
            let session = self.session_of(&asker);
            let mark = session.and_then(|of| Some(mark(of.local(), of.remote()?, hello.nonce)));
            if session.is_none() {
                // The box may have restarted: the session of its former life is resolved before its
                // OPEN.
                self.may_be_replaced(now, hello.box_id, &route);
            }
            let cookie = cookie(&self.cookies, &route, hello, epoch);
            let answer = self.hello(HelloStep::Answer, mark.unwrap_or(0), hello.nonce, cookie);
            return self.post_hello(side, route, 0, answer);
        }
        let is_ours = |epoch| cookie(&self.cookies, &route, hello, epoch) == hello.cookie;
        if hello.session == 0 || !(is_ours(epoch) || epoch > 0 && is_ours(epoch - 1)) {
            return self.drop(DropReason::Unasked);
        }
        self.accept(now, side, hello, route);
    }

    fn has_as_many_cores(&self, hello: &Hello) -> bool {
        hello.cores.max(1) == self.config().cores
    }

    /// `true` if a new life of box `box_id` may have a session: it has none, its session is silent,
    /// or its session has carried nothing from here while hosts here wait for the box along
    /// `route`. Otherwise the session is challenged; a restarted box answers that it does not know
    /// the session, which ends it. A box number is no secret, and a forger that uses another box's
    /// gets no further.
    fn may_be_replaced(&mut self, now: Instant, box_id: u64, route: &Path) -> bool {
        let is_sought = self.addresses.is_sought(route);
        let mut sessions = self.sessions.iter_mut();
        let standing =
            sessions.find(|session| session.peer().box_id == box_id && session.is_open());
        let Some(session) = standing else { return true };
        if session.is_silent(now, self.shared.config.hello_every) {
            return true;
        }
        if is_sought && !session.has_carried() {
            return true;
        }
        session.challenge(now, &mut self.shared);
        false
    }

    /// Opens a session with a box that presented a valid cookie.
    fn accept(&mut self, now: Instant, side: Side, hello: &Hello, route: Path) {
        let peer = Peer { box_id: hello.box_id, instance: hello.instance };
        let known = self.session_of(&peer);
        let known =
            known.filter(|session| session.remote().is_none_or(|remote| remote == hello.session));
        let local = match known.map(Session::local) {
            Some(local) => Some(local),
            None if !self.may_be_replaced(now, hello.box_id, &route) => {
                return self.drop(DropReason::SessionStands);
            }
            None => {
                self.end_former_life(now, &peer);
                self.begin(now, peer, route)
            }
        };
        let Some(local) = local else {
            let answer = self.hello(HelloStep::Refuse(Refusal::Full), 0, hello.nonce, 0);
            return self.post_hello(side, route, hello.session, answer);
        };
        self.addresses.learn(now, &route, local);
        let answer = self.hello(HelloStep::Accept, local, hello.nonce, 0);
        self.post_hello(side, route, hello.session, answer);
        if let Some(session) = self.sessions.get_mut(local)
            && !session.is_open()
        {
            let heard = (side, None);
            session.open(
                now,
                &mut self.shared,
                hello.session,
                hello.paths,
                hello.room_bytes,
                heard,
            );
            self.addresses.hurry(now);
        }
        self.release_waiting(now);
    }

    /// Handles the answer to a HELLO.
    fn handle_answer(&mut self, now: Instant, side: Side, hello: &Hello, route: Path) {
        let Some(asked_at) = self.addresses.asked(&route, hello.nonce) else {
            return self.drop(DropReason::Unasked);
        };
        if !self.has_as_many_cores(hello) {
            // The box predates the `cores` field, or it would have refused.
            self.addresses.pause(now, &route);
            return self.note_refusal(hello, Refusal::Cores);
        }
        let peer = Peer { box_id: hello.box_id, instance: hello.instance };
        if let Some(session) = self.session_of(&peer) {
            let local = session.local();
            let is_sealed = self.config().is_sealed;
            let is_its = |remote| hello.session == mark(remote, local, hello.nonce);
            match session.remote() {
                // It is asked again once the session is open.
                None if !is_sealed => return,
                Some(remote) if !(is_sealed || is_its(remote)) => {}
                _ => {
                    self.addresses.learn(now, &route, local);
                    return self.release_waiting(now);
                }
            }
        }
        if !self.may_be_replaced(now, hello.box_id, &route) {
            // The HELLO is retransmitted once the session of the box's former life has ended.
            return self.drop(DropReason::SessionStands);
        }
        self.end_former_life(now, &peer);
        let Some(local) = self.begin(now, peer, route) else {
            return self.addresses.pause(now, &route);
        };
        self.addresses.learn(now, &route, local);
        if let Some(session) = self.sessions.get_mut(local) {
            let open = Open { cookie: hello.cookie, nonce: hello.nonce, side };
            session.ask_to_open(Opening::new(now, open, now.since(asked_at)));
        }
        self.press_on(now, local);
    }

    /// Sends the OPEN of a session that is not open yet, if that is due. Returns `false` once the
    /// far box has left all of them unanswered.
    pub(crate) fn press_on(&mut self, now: Instant, local: u32) -> bool {
        let every = self.config().hello_every;
        let Some(session) = self.sessions.get_mut(local) else { return true };
        let route = session.route();
        let Open { cookie, nonce, side } = match session.press_on(now, every) {
            Due::Nothing => return true,
            Due::GiveUp => return false,
            Due::Ask(open) => open,
        };
        self.shared.counters.hellos_sent += 1;
        let hello = self.hello(HelloStep::Open, local, nonce, cookie);
        self.post_hello(side, route, 0, hello);
        true
    }

    fn handle_accept(&mut self, now: Instant, side: Side, header: &Header, hello: &Hello) {
        let peer = Peer { box_id: hello.box_id, instance: hello.instance };
        let session =
            self.sessions.get_mut(header.session).filter(|session| session.peer() == peer);
        let Some(session) =
            session.filter(|session| session.remote().is_none_or(|r| r == hello.session))
        else {
            return self.drop(DropReason::Unasked);
        };
        let answered = session.opening().filter(|opening| opening.is_answered_by(hello.nonce));
        let Some(opening) = answered else {
            // Both boxes opened, and the far box's OPEN arrived first.
            return;
        };
        if hello.session == 0 {
            return self.drop(DropReason::Malformed);
        }
        let heard = (side, opening.rtt(now));
        session.open(now, &mut self.shared, hello.session, hello.paths, hello.room_bytes, heard);
        self.addresses.hurry(now);
        self.release_waiting(now);
    }

    fn handle_refusal(&mut self, now: Instant, hello: &Hello, reason: Refusal, route: Path) {
        let peer = Peer { box_id: hello.box_id, instance: hello.instance };
        let is_refused = |session: &&Session| {
            session.opening().is_some_and(|opening| opening.is_answered_by(hello.nonce))
        };
        if let Some(local) = self.session_of(&peer).filter(is_refused).map(Session::local) {
            let pause = self.config().hello_pause;
            self.end(now, local, pause);
        } else if self.addresses.asked(&route, hello.nonce).is_some() {
            self.addresses.pause(now, &route);
        } else {
            return self.drop(DropReason::Unasked);
        }
        self.note_refusal(hello, reason);
    }

    fn note_refusal(&mut self, hello: &Hello, reason: Refusal) {
        match reason {
            Refusal::Version => self.shared.counters.refused_version += 1,
            Refusal::Policy => self.shared.counters.refused_policy += 1,
            Refusal::Cores => self.shared.counters.refused_cores += 1,
            Refusal::Full => {}
        }
        self.refused = Some(Refused {
            box_id: hello.box_id,
            reason,
            versions: (hello.version_min, hello.version_max),
            policy: hello.policy,
            cores: hello.cores.max(1),
        });
    }

    /// Ends the session with a former life of this box.
    fn end_former_life(&mut self, now: Instant, peer: &Peer) {
        let former = self.sessions.iter().find(|session| session.peer().box_id == peer.box_id);
        if let Some(local) = former.map(Session::local) {
            self.shared.counters.sessions_displaced +=
                u64::from(former.is_some_and(Session::is_up));
            self.end(now, local, Duration::ZERO);
        }
    }

    fn session_of(&self, peer: &Peer) -> Option<&Session> {
        self.sessions.iter().find(|session| session.peer() == *peer)
    }

    /// If all sessions are in use, ends one that is open and has carried nothing from here, to make
    /// room for the box along `route`, provided that hosts here wait for it.
    fn make_room(&mut self, now: Instant, route: &Path) {
        if !self.sessions.is_full() || !self.addresses.is_sought(route) {
            return;
        }
        let is_idle = |session: &&Session| session.is_open() && !session.has_carried();
        let idle = self.sessions.iter().find(is_idle).map(Session::local);
        if let Some(local) = idle {
            self.shared.counters.sessions_displaced += 1;
            self.end(now, local, Duration::ZERO);
        }
    }

    fn begin(&mut self, now: Instant, peer: Peer, route: Path) -> Option<u32> {
        self.make_room(now, &route);
        let local = self.sessions.draw_number(&mut self.shared.rng)?;
        self.sessions.insert(Session::new(now, &mut self.shared, local, peer, route));
        Some(local)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Config, samples};

    const NOW: Instant = Instant::from_ps(1_000_000);

    /// A box with two cores that has asked from `ips[0]` for `ips[1]`, with its HELLO.
    fn asker(ips: [&str; 2]) -> (Transport, Header, Hello) {
        let mut asker =
            Transport::new(Config { box_id: 1, cores: 2, ..Config::default() }).unwrap();
        asker.addresses.find(NOW, samples::route(ips, None), &mut asker.shared.rng);
        asker.ask(NOW);
        let Some(ControlDatagram { body: Body::Hello(asked), header, .. }) =
            asker.shared.control_queue.pop_front()
        else {
            panic!("nothing was asked")
        };
        assert_eq!((asked.step, asked.cores), (HelloStep::Ask, 2));
        (asker, header, Hello { step: HelloStep::Answer, box_id: 2, cookie: 7, ..asked })
    }

    /// Handles an answer that announces `cores` cores. Returns the number of sessions and the
    /// refused number of cores.
    fn answered(cores: u8) -> (usize, Option<u8>) {
        let ips = ["10.0.0.1", "10.0.0.2"];
        let (mut asker, header, answer) = asker(ips);
        asker.handle_hello(NOW, 1, &header, &Hello { cores, ..answer }, samples::route(ips, None));
        (asker.sessions.iter().count(), asker.refused.map(|refused| refused.cores))
    }

    #[test]
    fn an_answer_to_an_address_that_did_not_ask_is_dropped() {
        for [asks, other, asked] in
            [["10.0.0.1", "10.0.2.1", "10.0.1.1"], ["fd00::1", "fd00::3", "fd00::2"]]
        {
            let (mut asker, header, answer) = asker([asks, asked]);
            for (source, sessions) in [(other, 0), (asks, 1)] {
                let route = samples::route([source, asked], None);
                asker.handle_hello(NOW, 1, &header, &answer, route);
                assert_eq!(asker.sessions.iter().count(), sessions, "{source}");
                assert_eq!(asker.counters().drops.get(DropReason::Unasked), 1);
            }
        }
    }

    #[test]
    fn a_box_that_answers_although_it_has_other_cores_is_refused() {
        assert_eq!(answered(2), (1, None));
        assert_eq!(answered(3), (0, Some(3)));
        // A box without the `cores` field.
        assert_eq!(answered(0), (0, Some(1)));
    }
}
