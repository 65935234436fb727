//! HELLOs: who asks, who answers without keeping anything, and how a session comes to be.
//!
//! ask → answer with a cookie → open with that cookie → accept. A box that only ever asks or
//! answers costs the other nothing but a bounded number of answers.

use crate::format::{DatagramKind, Header, Hello, HelloStep, Refusal, VERSION};
use crate::session::{Due, Open, Opening, Peer, Session};
use crate::shared::{Body, ControlDatagram};
use crate::transport::Transport;
use crate::{DropReason, Refused};
use longhaul_node::Side;
use longhaul_secret::TagKey;
use longhaul_units::{Duration, Instant};
use longhaul_wire::{Path, address_bits};

/// How long a cookie is good for, at least.
const COOKIE_LIFE_NS: u64 = 10_000_000_000;

/// Proves that its holder gets what is sent to its address: a tag of `key` over what it is for.
fn cookie(key: &TagKey, route: &Path, hello: &Hello, epoch: u64) -> u64 {
    let tag = key.tag(&[
        &epoch.to_be_bytes(),
        &address_bits(route.source_ip).to_be_bytes(),
        &address_bits(route.destination_ip).to_be_bytes(),
        // One more than any tag has: no VLAN.
        &route.vlan.map_or(1 << 16, u32::from).to_be_bytes(),
        &hello.box_id.to_be_bytes(),
        &hello.instance.to_be_bytes(),
        &hello.nonce.to_be_bytes(),
    ]);
    u64::from_be_bytes(tag.first_chunk().copied().unwrap_or_default())
}

/// Shows who asks that the answer is of the box at the other end of its session, and nobody else
/// anything: both numbers of the session are its key. 0 stands for no session.
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

    /// Sends the HELLOs that are due.
    pub(crate) fn ask(&mut self, now: Instant) {
        while let Some(ask) = self.addresses.due(now) {
            self.shared.counters.hellos_sent += 1;
            let hello = self.hello(HelloStep::Ask, 0, ask.nonce, 0);
            self.post_hello(ask.side, ask.route, 0, hello);
        }
    }

    /// A HELLO came by `side`; `route` leads back to where it came from.
    pub(crate) fn handle_hello(
        &mut self,
        now: Instant,
        side: Side,
        header: &Header,
        hello: &Hello,
        route: Path,
    ) {
        if hello.box_id == self.config().box_id {
            // Our own, come back, or two boxes of one name.
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
                // It has perhaps restarted: what it says of its former life comes before its OPEN.
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

    /// True when a new life of the box of this number may have a session: none stands, or the one
    /// that does is silent, or has carried nothing from here while hosts here wait for the
    /// box along `route`. Otherwise that is challenged: a box that has restarted answers that it
    /// does not know the session, which ends it. A box number is no secret, and whoever uses
    /// another's gets no further.
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

    /// Opens a session with a box that has shown its cookie.
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

    /// The answer to a HELLO: there is a box.
    fn handle_answer(&mut self, now: Instant, side: Side, hello: &Hello, route: Path) {
        let Some(asked_at) = self.addresses.asked(&route, hello.nonce) else {
            return self.drop(DropReason::Unasked);
        };
        if !self.has_as_many_cores(hello) {
            // It knows of no cores, or it would have refused.
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
            // The HELLO is retransmitted once the session of its former life has ended.
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

    /// Asks the far box of a session that is not open to open it, if that is due. False: it has
    /// been asked in vain.
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
            // Both have asked at once, and the other was quicker.
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

    /// What was agreed with a former life of this box is void.
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

    /// Where there is no room for the box along `route`, for which hosts here wait, an open session
    /// that has carried nothing from here makes some.
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

    /// What an asking box makes of an answer that says so many cores: sessions, and the number that
    /// was refused.
    fn answered(cores: u8) -> (usize, Option<u8>) {
        let mut asker =
            Transport::new(Config { box_id: 1, cores: 2, ..Config::default() }).unwrap();
        let (now, route) =
            (Instant::from_ps(1_000_000), samples::route(["10.0.0.1", "10.0.0.2"], None));
        asker.addresses.find(now, route, &mut asker.shared.rng);
        asker.ask(now);
        let Some(ControlDatagram { body: Body::Hello(asked), header, .. }) =
            asker.shared.control_queue.pop_front()
        else {
            panic!("nothing was asked")
        };
        assert_eq!((asked.step, asked.cores), (HelloStep::Ask, 2));
        let answer = Hello { step: HelloStep::Answer, box_id: 2, cookie: 7, cores, ..asked };
        asker.handle_hello(now, 1, &header, &answer, route);
        (asker.sessions.iter().count(), asker.refused.map(|refused| refused.cores))
    }

    #[test]
    fn a_box_that_answers_although_it_has_other_cores_is_refused() {
        assert_eq!(answered(2), (1, None));
        assert_eq!(answered(3), (0, Some(3)));
        // One that knows of no cores.
        assert_eq!(answered(0), (0, Some(1)));
    }
}
