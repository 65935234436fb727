//! One box's transport.

use super::{FRAMES_MAX, Slip};

/// Most transmissions of a session: number sets are bits of a word. No run within the bounds needs
/// more.
const NUMBERS_MAX: u8 = 15;

/// A datagram between two boxes. Names are those of the receiver, unless stated otherwise.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Datagram {
    /// A HELLO that asks for the peer.
    Ask {
        /// The asker's nonce.
        nonce: u8,
    },
    /// The answer to a HELLO.
    Answer {
        /// Instance of the answering box.
        instance: u8,
        /// The asker's nonce.
        nonce: u8,
        /// Derived from a secret of the answering box.
        cookie: Cookie,
    },
    /// Opens a session.
    Open {
        /// Instance of the opening box.
        instance: u8,
        /// Name of the session at the opening box.
        session: u8,
        /// The asker's nonce.
        nonce: u8,
        /// The cookie from the answer.
        cookie: Cookie,
    },
    /// Accepts a session.
    Accept {
        /// Name of the session at the opening box.
        to: u8,
        /// Instance of the accepting box.
        instance: u8,
        /// Name of the session at the accepting box.
        session: u8,
        /// The asker's nonce.
        nonce: u8,
    },
    /// A frame.
    Data {
        /// The session.
        to: u8,
        /// Number of the transmission.
        number: u8,
        /// Sequence of the frame.
        sequence: u8,
        /// Content of the frame.
        frame: u8,
    },
    /// Acknowledges transmissions.
    Ack {
        /// The session.
        to: u8,
        /// One bit per number.
        numbers: u16,
    },
    /// Asks whether the session is known.
    Ping {
        /// The session.
        to: u8,
        /// Name of the session at the asker.
        session: u8,
        /// The asker's nonce.
        nonce: u8,
    },
    /// The answer to a PING for an unknown session.
    Unknown {
        /// The session.
        to: u8,
        /// The asker's nonce.
        nonce: u8,
    },
}

/// Mirrors `cookie`, reduced to its inputs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Cookie {
    /// Stands for the secret of the box that created it.
    life: u8,
}

/// Mirrors `Opening`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Opening {
    cookie: Cookie,
    nonce: u8,
    tries: u8,
}

/// An unacknowledged frame, and the numbers of its transmissions.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Record {
    frame: u8,
    numbers: u16,
}

/// Mirrors `Session`, with `Outgoing`, `Flight`, `Incoming` and `Arrivals`.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Session {
    local: u8,
    remote: Option<u8>,
    peer_instance: u8,
    opening: Option<Opening>,
    /// By sequence; `None` once acknowledged.
    records: Vec<Option<Record>>,
    next_number: u8,
    arrived: u16,
    next: u8,
    /// Out-of-order frames, by sequence.
    waiting: [Option<u8>; FRAMES_MAX as usize],
    asked: Option<u8>,
}

/// A box.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct End {
    instance: u8,
    session: Option<Session>,
    /// Nonce of the HELLO that asks for a far box.
    question: Option<u8>,
    /// First sequence left by a previous session, for [`Slip::KeepsSequence`].
    sequence_from: u8,
}

/// Context of one step of an end.
pub(super) struct Step<'a> {
    pub(super) slip: Option<Slip>,
    pub(super) open_tries: u8,
    pub(super) names: &'a mut u8,
    pub(super) out: Vec<Datagram>,
    pub(super) handed_out: &'a mut Vec<u8>,
}

impl Step<'_> {
    fn name(&mut self) -> u8 {
        *self.names += 1;
        *self.names
    }
}

impl End {
    pub(super) fn new(instance: u8) -> Self {
        End { instance, session: None, question: None, sequence_from: 0 }
    }

    /// Name of its session, once open.
    pub fn open(&self) -> Option<u8> {
        self.session
            .as_ref()
            .filter(|session| session.remote.is_some())
            .map(|session| session.local)
    }

    /// Name of its session at the peer.
    pub fn remote(&self) -> Option<u8> {
        self.session.as_ref().and_then(|session| session.remote)
    }

    pub(super) fn is_opening(&self) -> bool {
        self.session.as_ref().is_some_and(|session| session.opening.is_some())
    }

    /// Number of unacknowledged frames.
    pub(super) fn waiting(&self) -> usize {
        self.session.iter().flat_map(|session| &session.records).flatten().count()
    }

    /// True if it will retransmit this frame until it is acknowledged.
    pub(super) fn owes(&self, frame: u8) -> bool {
        let mut records = self.session.iter().flat_map(|session| &session.records).flatten();
        records.any(|record| record.frame == frame)
    }

    /// True if the frame waits here for an earlier one.
    pub(super) fn holds(&self, frame: u8) -> bool {
        self.session.as_ref().is_some_and(|session| session.waiting.contains(&Some(frame)))
    }

    /// Mirrors `Addresses::find` and `due`: a box without a session asks for a far box.
    pub(super) fn may_ask(&self, is_quiet: bool) -> bool {
        self.session.is_none() && (self.question.is_none() || is_quiet)
    }

    pub(super) fn ask(&mut self, step: &mut Step<'_>) {
        let nonce = *self.question.get_or_insert_with(|| step.name());
        step.out.push(Datagram::Ask { nonce });
    }

    fn cookie(&self) -> Cookie {
        Cookie { life: self.instance }
    }

    pub(super) fn restart(&mut self, step: &mut Step<'_>) {
        let instance = if step.slip == Some(Slip::SameSeed) { self.instance } else { step.name() };
        *self = End::new(instance);
    }

    fn end(&mut self, step: &Step<'_>) {
        if let Some(session) = self.session.take()
            && step.slip == Some(Slip::KeepsSequence)
        {
            self.sequence_from += session.records.len() as u8;
        }
    }

    /// Mirrors `Transport::begin`.
    fn begin(&mut self, step: &mut Step<'_>, peer_instance: u8) -> &mut Session {
        let local =
            if step.slip == Some(Slip::SameSeed) { self.instance + 100 } else { step.name() };
        self.question = None;
        self.session.insert(Session {
            local,
            remote: None,
            peer_instance,
            opening: None,
            records: vec![None; self.sequence_from.into()],
            next_number: 0,
            arrived: 0,
            next: 0,
            waiting: [None; FRAMES_MAX as usize],
            asked: None,
        })
    }

    /// Mirrors `handle_wan`.
    pub(super) fn handle(&mut self, datagram: Datagram, step: &mut Step<'_>) {
        match datagram {
            Datagram::Ask { nonce } => {
                let (instance, cookie) = (self.instance, self.cookie());
                step.out.push(Datagram::Answer { instance, nonce, cookie });
            }
            Datagram::Answer { instance, nonce, cookie } => {
                self.handle_answer(instance, nonce, cookie, step)
            }
            Datagram::Open { instance, session, nonce, cookie } => {
                if cookie == self.cookie() {
                    self.accept(instance, session, nonce, step);
                }
            }
            Datagram::Accept { to, instance, session, nonce } => {
                self.handle_accept(to, instance, session, nonce);
            }
            Datagram::Data { to, number, sequence, frame } => {
                if let Some(session) = self.named(to, step) {
                    session.handle_numbered(number, sequence, frame, step);
                }
            }
            Datagram::Ack { to, numbers } => {
                if let Some(session) = self.named(to, step) {
                    session.handle_ack(numbers);
                }
            }
            Datagram::Ping { to, session, nonce } => {
                // Mirrors `handle_stray`: a session that is being opened is not denied.
                let is_there = self.session.as_ref().is_some_and(|session| session.local == to);
                if !is_there && step.slip != Some(Slip::KeepsSilent) {
                    step.out.push(Datagram::Unknown { to: session, nonce });
                }
            }
            Datagram::Unknown { to, nonce } => {
                if self.named(to, step).is_some_and(|session| session.asked == Some(nonce)) {
                    self.end(step);
                }
            }
        }
    }

    /// Mirrors `Sessions::get_mut`: the session with this name, if open.
    fn named(&mut self, name: u8, step: &Step<'_>) -> Option<&mut Session> {
        let takes_any = step.slip == Some(Slip::TakesAnySession);
        let session = self.session.as_mut().filter(|session| session.remote.is_some());
        session.filter(|session| session.local == name || takes_any)
    }

    fn handle_answer(&mut self, instance: u8, nonce: u8, cookie: Cookie, step: &mut Step<'_>) {
        if self.question != Some(nonce) {
            return;
        }
        self.question = None;
        if self.session.as_ref().is_some_and(|session| session.peer_instance == instance) {
            return;
        }
        if !self.gives_way(step) {
            return;
        }
        // Mirrors `end_former_life`.
        self.end(step);
        self.begin(step, instance).opening = Some(Opening { cookie, nonce, tries: 0 });
        self.press_on(step);
    }

    pub(super) fn press_on(&mut self, step: &mut Step<'_>) {
        let instance = self.instance;
        let Some(session) = &mut self.session else { return };
        let Some(opening) = &mut session.opening else { return };
        if opening.tries == step.open_tries {
            return self.end(step);
        }
        opening.tries += 1;
        let Opening { cookie, nonce, .. } = *opening;
        step.out.push(Datagram::Open { instance, session: session.local, nonce, cookie });
    }

    /// An attacker asks in the name of the other box, receives the cookie, and opens a session.
    pub(super) fn handle_stranger(&mut self, step: &mut Step<'_>) {
        let (instance, session, nonce) = (step.name(), step.name(), step.name());
        let cookie = self.cookie();
        self.handle(Datagram::Open { instance, session, nonce, cookie }, step);
    }

    /// Mirrors `may_be_replaced` and `challenge`, without silence: a challenged box answers.
    fn gives_way(&mut self, step: &mut Step<'_>) -> bool {
        if self.open().is_none() || step.slip == Some(Slip::TakesOver) {
            return true;
        }
        self.ping(step);
        false
    }

    fn accept(&mut self, instance: u8, remote: u8, nonce: u8, step: &mut Step<'_>) {
        let is_known = self.session.as_ref().is_some_and(|session| {
            session.peer_instance == instance && session.remote.is_none_or(|known| known == remote)
        });
        if !is_known && !self.gives_way(step) {
            return;
        }
        if !is_known {
            // It has forgotten the session, or has restarted.
            self.end(step);
            self.begin(step, instance);
        }
        self.question = None;
        let instance = self.instance;
        let Some(session) = &mut self.session else { return };
        step.out.push(Datagram::Accept { to: remote, instance, session: session.local, nonce });
        if session.remote.is_none() {
            session.remote = Some(remote);
            session.opening = None;
        }
    }

    fn handle_accept(&mut self, to: u8, instance: u8, remote: u8, nonce: u8) {
        let session =
            self.session.as_mut().filter(|s| s.local == to && s.peer_instance == instance);
        let Some(session) = session.filter(|s| s.remote.is_none_or(|known| known == remote)) else {
            return;
        };
        if session.opening.is_some_and(|opening| opening.nonce == nonce) {
            session.remote = Some(remote);
            session.opening = None;
        }
    }

    /// Mirrors `Outgoing::push`. Returns the session and sequence of the frame.
    pub(super) fn push(&mut self, frame: u8) -> Option<(u8, u8)> {
        let session = self.session.as_mut().filter(|session| session.remote.is_some())?;
        session.records.push(Some(Record { frame, numbers: 0 }));
        Some((session.local, (session.records.len() - 1) as u8))
    }

    pub(super) fn send_fresh(&mut self, step: &mut Step<'_>) {
        let Some(session) = &mut self.session else { return };
        session.send(session.records.len() - 1, step);
    }

    pub(super) fn may_repeat(&self, place: u8) -> bool {
        let session = self.session.as_ref().filter(|session| session.remote.is_some());
        let session = session.filter(|session| session.next_number < NUMBERS_MAX);
        session.is_some_and(|session| {
            session.records.get(usize::from(place)).is_some_and(Option::is_some)
        })
    }

    pub(super) fn repeat(&mut self, place: u8, step: &mut Step<'_>) {
        if let Some(session) = &mut self.session {
            session.send(place.into(), step);
        }
    }

    pub(super) fn ping(&mut self, step: &mut Step<'_>) {
        let Some(session) = &mut self.session else { return };
        let Some(to) = session.remote else { return };
        let nonce = *session.asked.get_or_insert_with(|| step.name());
        step.out.push(Datagram::Ping { to, session: session.local, nonce });
    }
}

impl Session {
    /// Mirrors `send_next`: a number is never reused.
    fn send(&mut self, place: usize, step: &mut Step<'_>) {
        let (Some(to), Some(Some(record))) = (self.remote, self.records.get_mut(place)) else {
            return;
        };
        let number = self.next_number;
        self.next_number += 1;
        record.numbers |= 1 << number;
        step.out.push(Datagram::Data { to, number, sequence: place as u8, frame: record.frame });
    }

    /// Mirrors `handle_numbered`, `Incoming::look` and `take`.
    fn handle_numbered(&mut self, number: u8, sequence: u8, frame: u8, step: &mut Step<'_>) {
        if self.arrived & 1 << number != 0 {
            return;
        }
        self.arrived |= 1 << number;
        let place = usize::from(sequence);
        let is_known = sequence < self.next || self.waiting[place].is_some();
        if step.slip == Some(Slip::HandsOutAtOnce) {
            if self.waiting[place].replace(frame).is_none() {
                step.handed_out.push(frame);
            }
        } else if !is_known || step.slip == Some(Slip::ForgetsSequence) {
            self.waiting[place] = Some(frame);
            if sequence < self.next {
                step.handed_out.push(frame);
            }
        }
        while step.slip != Some(Slip::HandsOutAtOnce)
            && let Some(frame) = self.waiting.get_mut(usize::from(self.next)).and_then(Option::take)
        {
            step.handed_out.push(frame);
            self.next += 1;
        }
        let ahead = if step.slip == Some(Slip::AcknowledgesAhead) { self.arrived << 1 } else { 0 };
        step.out.extend(self.remote.map(|to| Datagram::Ack { to, numbers: self.arrived | ahead }));
    }

    /// An ACK for a number that was never used is ignored.
    fn handle_ack(&mut self, numbers: u16) {
        if numbers >> self.next_number != 0 {
            return;
        }
        for record in &mut self.records {
            *record = record.filter(|record| record.numbers & numbers == 0);
        }
    }
}
