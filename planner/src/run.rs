//! The duration of a finite run, played message by message.
//!
//! Formulas give the steady state of a run, not its start, where the lots of its queue pairs meet
//! on the line and drift apart, turn by turn, in an order that depends on which came first.

use crate::window::Acknowledged;
use std::collections::VecDeque;

/// Parameters of a run. All queue pairs are equal and begin together.
///
/// The run is perftest's loop over an idle line. The program, one thread, posts for one queue pair
/// until its queue is full, then for the next; each polled completion frees a lot of places, which
/// it fills at once. The NIC sends a packet, or a larger piece, of each queue pair in turn; for
/// READs and atomics it sends the request, and the responder's NIC the pieces. Everything after a
/// message's last bit takes the same time for each message, so events occur in the order of their
/// causes, and two queues replace a list of events.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    /// Queue pairs.
    pub qps: usize,
    /// Messages of each.
    pub messages: u64,
    /// Messages that the program keeps posted.
    pub depth: u64,
    /// Messages per completion.
    pub lot: u64,
    /// The NIC's limit of outstanding messages.
    pub room: u64,
    /// The NIC's limit of unacknowledged pieces, and the acknowledged ones; `None`: no limit, and
    /// each message's last piece is acknowledged.
    pub window: Option<(u64, Acknowledged)>,
    /// The program's time to post a message.
    pub post_ns: f64,
    /// The program's time to poll a completion.
    pub poll_ns: f64,
    /// Time from posting a message until the NIC has it.
    pub doorbell_ns: f64,
    /// Minimum time between two messages that the NIC takes from the program.
    pub message_ns: f64,
    /// The NIC's time for the request of a READ or atomic; 0 for other operations.
    pub request_ns: f64,
    /// Pieces in which a message is sent: its packets, or fewer if there are too many to play.
    pub pieces: u64,
    /// The piece of a message, from 1, whose acknowledgement or response lets another message begin
    /// at the NIC's limit.
    pub opens: u64,
    /// The NIC's time for a message, before it passes to the port.
    pub nic_ns: f64,
    /// Maximum lead of the NIC over the line.
    pub ahead_ns: f64,
    /// Time of a message on the line.
    pub line_ns: f64,
    /// Time from the last bit of a piece until the NIC has its acknowledgement or response.
    pub answer_ns: f64,
    /// Time from then until the program can see the completion.
    pub completion_ns: f64,
}

impl Run {
    /// Maximum messages, and pieces, of all queue pairs to play: about half a millisecond of
    /// computing.
    pub const PLAYED_MAX: u64 = 50_000;
    /// Maximum packets to play above a packet window: some milliseconds of computing.
    pub const PACKETS_PLAYED_MAX: u64 = 250_000;

    /// Duration from the first post to the last polled completion, in nanoseconds.
    pub fn ns(&self) -> f64 {
        let mut play = Play {
            run: self,
            pairs: vec![Pair::default(); self.qps],
            posted: VecDeque::new(),
            answers: VecDeque::new(),
            arrivals: VecDeque::new(),
            requesters: VecDeque::new(),
            turns: VecDeque::new(),
            program_ns: 0.0,
            known_ns: 0.0,
            request_ns: 0.0,
            nic_ns: 0.0,
            line_ns: 0.0,
        };
        (0..self.qps).for_each(|pair| play.post(pair));
        while play.step() {}
        play.program_ns
    }
}

/// Progress of a queue pair, in messages.
#[derive(Clone, Copy, Debug, Default)]
struct Pair {
    posted: u64,
    /// Messages known to the NIC.
    known: u64,
    requested: u64,
    /// Messages known to the sender of the pieces.
    arrived: u64,
    /// Pieces sent.
    sent: u64,
    /// The last acknowledged piece, with a packet window.
    acknowledged: u64,
    /// Messages whose acknowledgement or response has let others begin.
    opened: u64,
    completed: u64,
}

impl Pair {
    fn can_request(&self, room: u64) -> bool {
        self.requested < self.known.min(self.opened + room)
    }

    fn can_send(&self, run: &Run) -> bool {
        let has_room = run.window.is_none_or(|(window, _)| self.sent < self.acknowledged + window);
        has_room && self.sent < self.arrived * run.pieces
    }
}

struct Play<'a> {
    run: &'a Run,
    pairs: Vec<Pair>,
    /// Posted messages: the time at which the NIC has each, and its queue pair.
    posted: VecDeque<(f64, usize)>,
    /// Acknowledgements and responses: the time at which the NIC has each, the queue pair, and the
    /// numbers of message and piece, from 1.
    answers: VecDeque<(f64, usize, [u64; 2])>,
    /// Requests: the time at which the sender of the pieces has each, and the queue pair.
    arrivals: VecDeque<(f64, usize)>,
    /// Queue pairs with requests to send, in round-robin order.
    requesters: VecDeque<usize>,
    /// Queue pairs with pieces to send, in round-robin order.
    turns: VecDeque<usize>,
    /// The program is busy until then.
    program_ns: f64,
    /// The earliest time at which the NIC takes the next message from the program.
    known_ns: f64,
    /// The earliest time at which the NIC starts the next request.
    request_ns: f64,
    /// The earliest time at which the NIC starts the next piece.
    nic_ns: f64,
    /// The line is busy until then.
    line_ns: f64,
}

impl Play<'_> {
    /// Processes the next event; `false` if there is none.
    fn step(&mut self) -> bool {
        let next = |at: Option<f64>| at.unwrap_or(f64::INFINITY);
        let known_at = next(self.posted.front().map(|posted| posted.0));
        let arrival_at = next(self.arrivals.front().map(|arrival| arrival.0));
        let answer_at = next(self.answers.front().map(|answer| answer.0));
        let at = known_at.min(arrival_at).min(answer_at);
        let request_at = next(self.requesters.front().map(|_| self.request_ns));
        let send_at = next(self.turns.front().map(|_| self.nic_ns));
        if at > request_at.min(send_at) {
            if request_at <= send_at { self.request() } else { self.send() }
        } else if known_at == at
            && let Some((_, pair)) = self.posted.pop_front()
        {
            self.with_room(at, pair, |pair| pair.known += 1);
        } else if arrival_at == at
            && let Some((_, pair)) = self.arrivals.pop_front()
        {
            self.with_pieces(at, pair, |pair| pair.arrived += 1);
        } else if let Some((_, pair, [number, piece])) = self.answers.pop_front() {
            if self.run.window.is_some() {
                let acknowledged = (number - 1) * self.run.pieces + piece;
                self.with_pieces(at, pair, |pair| pair.acknowledged = acknowledged);
            }
            if piece == self.run.opens {
                self.with_room(at, pair, |pair| pair.opened = number);
            }
            if piece == self.run.pieces {
                self.complete(at, pair, number);
            }
        } else {
            return false;
        }
        true
    }

    /// Changes a queue pair, and queues it for requests if it has become ready to send one.
    fn with_room(&mut self, at: f64, index: usize, change: impl FnOnce(&mut Pair)) {
        let room = self.run.room;
        let pair = &mut self.pairs[index];
        let could_request = pair.can_request(room);
        change(pair);
        if pair.can_request(room) && !could_request {
            self.requesters.push_back(index);
            self.request_ns = self.request_ns.max(at);
        }
    }

    fn request(&mut self) {
        let Some(index) = self.requesters.pop_front() else { return };
        self.arrivals.push_back((self.request_ns, index));
        self.request_ns += self.run.request_ns;
        let pair = &mut self.pairs[index];
        pair.requested += 1;
        if pair.can_request(self.run.room) {
            self.requesters.push_back(index);
        }
    }

    /// Changes a queue pair, and queues it for sending if it has become ready to send a piece.
    fn with_pieces(&mut self, at: f64, index: usize, change: impl FnOnce(&mut Pair)) {
        let pair = &mut self.pairs[index];
        let could_send = pair.can_send(self.run);
        change(pair);
        if pair.can_send(self.run) && !could_send {
            self.turns.push_back(index);
            self.nic_ns = self.nic_ns.max(at);
        }
    }

    fn send(&mut self) {
        let Some(index) = self.turns.pop_front() else { return };
        let run = self.run;
        let part = 1.0 / run.pieces as f64;
        self.line_ns = self.line_ns.max(self.nic_ns) + run.line_ns * part;
        self.nic_ns = (self.nic_ns + run.nic_ns * part).max(self.line_ns - run.ahead_ns);
        let pair = &mut self.pairs[index];
        pair.sent += 1;
        let (number, piece) = (pair.sent.div_ceil(run.pieces), (pair.sent - 1) % run.pieces + 1);
        // Without a limit of the NIC, only acknowledgements that complete a message matter.
        let opens = piece == run.opens && run.room < run.depth;
        let is_acknowledged = run.window.is_some_and(|(_, which)| which.is(pair.sent));
        if opens || is_acknowledged || (piece == run.pieces && run.is_signalled(number)) {
            self.answers.push_back((self.line_ns + run.answer_ns, index, [number, piece]));
        }
        if pair.can_send(run) {
            self.turns.push_back(index);
        }
    }

    /// Polls the completion of a message, and posts the next ones.
    fn complete(&mut self, at: f64, index: usize, number: u64) {
        if self.run.is_signalled(number) {
            self.program_ns = self.program_ns.max(at + self.run.completion_ns) + self.run.poll_ns;
            self.pairs[index].completed = number;
            self.post(index);
        }
    }

    fn post(&mut self, index: usize) {
        let (run, pair) = (self.run, &mut self.pairs[index]);
        let until = run.messages.min(pair.completed + run.depth);
        for _ in pair.posted..until {
            self.program_ns += run.post_ns;
            let known_ns = self.known_ns.max(self.program_ns + run.doorbell_ns);
            self.posted.push_back((known_ns, index));
            self.known_ns = known_ns + run.message_ns;
        }
        pair.posted = until;
    }
}

impl Run {
    fn is_signalled(&self, number: u64) -> bool {
        number.is_multiple_of(self.lot) || number == self.messages
    }
}
