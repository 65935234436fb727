//! A run of finite length, message by message: how long it takes.
//!
//! Formulas give what a run comes to in the end, not how soon. At its start the lots of its queue
//! pairs meet on the line, and how they come apart, turn by turn, is a matter of who came first.

use crate::window::Acknowledged;
use std::collections::VecDeque;

/// What a run is made of. All queue pairs are alike and begin together.
///
/// It is perftest's loop before an idle line: the program, one thread, posts for one queue pair
/// until its queue is full, then for the next; each completion that it polls frees a lot of places,
/// which it fills at once. The NIC sends a packet, or a larger piece, of each queue pair in turn;
/// of what is answered with payload a request, and the responder's NIC the pieces. Everything that
/// follows a message's last bit takes the same time for each, so that answers and what the program
/// posts come in the order in which they were caused, and two queues stand for a list of events.
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
    /// Messages that the NIC leaves unanswered.
    pub room: u64,
    /// Pieces that it leaves unacknowledged, and which ones are acknowledged; `None`: each
    /// message's last, and any number.
    pub window: Option<(u64, Acknowledged)>,
    /// What the program takes for posting a message.
    pub post_ns: f64,
    /// What it takes for polling a completion.
    pub poll_ns: f64,
    /// From a message posted to the NIC having it.
    pub doorbell_ns: f64,
    /// Least time between two messages that the NIC takes from the program.
    pub message_ns: f64,
    /// How long a request keeps the NIC busy whose answer is the message; 0 where the request is.
    pub request_ns: f64,
    /// Pieces in which a message is sent: its packets, or fewer where there would be too many to
    /// play.
    pub pieces: u64,
    /// The piece of a message, counted from 1, whose answer lets another message begin where the
    /// NIC's limit is reached.
    pub opens: u64,
    /// How long a message keeps the NIC busy, which then hands it to the port.
    pub nic_ns: f64,
    /// How far the NIC may be ahead of the line.
    pub ahead_ns: f64,
    /// How long a message keeps the line busy.
    pub line_ns: f64,
    /// From the last bit of a piece to the NIC having its answer.
    pub answer_ns: f64,
    /// From that to the program being able to see the completion.
    pub completion_ns: f64,
}

impl Run {
    /// Messages of all queue pairs, and pieces of them, that are played at most: what takes about
    /// half a millisecond.
    pub const PLAYED_MAX: u64 = 50_000;
    /// Packets that are played at most where a window of packets makes each one count: some
    /// milliseconds.
    pub const PACKETS_PLAYED_MAX: u64 = 250_000;

    /// From the first post to the last completion seen, in nanoseconds.
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

/// A queue pair: how many of its messages have come how far.
#[derive(Clone, Copy, Debug, Default)]
struct Pair {
    posted: u64,
    /// The NIC has them.
    known: u64,
    requested: u64,
    /// Whoever sends the pieces has them.
    arrived: u64,
    /// Pieces.
    sent: u64,
    /// The last piece of which the NIC has the acknowledgement, where it counts them.
    acknowledged: u64,
    /// Messages whose answer, or as much of it as matters, lets others begin.
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
    /// When the NIC has each message that was posted, and whose it is.
    posted: VecDeque<(f64, usize)>,
    /// When the NIC has the answer to a piece of a message, whose it is, and the number of both,
    /// counted from 1.
    answers: VecDeque<(f64, usize, [u64; 2])>,
    /// When whoever sends the pieces has each message, and whose it is.
    arrivals: VecDeque<(f64, usize)>,
    /// Queue pairs that have something to request, in turn.
    requesters: VecDeque<usize>,
    /// Queue pairs that have pieces to send, in turn.
    turns: VecDeque<usize>,
    /// The program is busy until then.
    program_ns: f64,
    /// The NIC takes no message from the program before.
    known_ns: f64,
    /// The NIC takes up no request before.
    request_ns: f64,
    /// The NIC takes up no piece before.
    nic_ns: f64,
    /// The line is busy until then.
    line_ns: f64,
}

impl Play<'_> {
    /// What happens next; false when nothing does any more.
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

    /// Changes a queue pair, which joins those that have something to request if it now does and
    /// did not.
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

    /// Changes a queue pair, which joins those that have pieces to send if it now may and could
    /// not.
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
        // Without a limit of the NIC, answers matter where they complete something.
        let opens = piece == run.opens && run.room < run.depth;
        let is_acknowledged = run.window.is_some_and(|(_, which)| which.is(pair.sent));
        if opens || is_acknowledged || (piece == run.pieces && run.is_signalled(number)) {
            self.answers.push_back((self.line_ns + run.answer_ns, index, [number, piece]));
        }
        if pair.can_send(run) {
            self.turns.push_back(index);
        }
    }

    /// The program polls the completion of a message, and posts.
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
