//! Every operation, both ways, on one RC queue pair at a time, while somebody kills what lies
//! between; a queue pair that fails is made anew.
//!
//! A life is one queue pair. Each message has its own place in memory, so that what is there shows
//! which messages arrived. What may be missing is for the test to judge, which knows the kills; all
//! else is judged here: bytes, immediates, results, order, nothing behind a gap.

use crate::plan::fill;
use crate::session::{Pair, Session};
use crate::{Fault, ProcessRole};
use longhaul_rdma::{
    Access, Completion, CompletionOp, MemoryRegion, Mtu, PathSettings, SendOp, Status,
};
use longhaul_units::{Rng, SplitMix64};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    #[arg(long)]
    seed: u64,
    #[arg(long)]
    seconds: f64,
    /// Where the client says that a life begins (`life-N`), and an end that it is over; empty, and
    /// the same for both
    #[arg(long)]
    dir: PathBuf,
}

/// Messages of a life, from each end.
const MESSAGES: usize = 120;
const SLOT: usize = 12 << 10;
const AREA: usize = MESSAGES * SLOT;
const MTU: usize = 1024;
/// Messages posted and not completed.
const DEPTH: usize = 24;
/// Longest time between two messages.
const PAUSE_MAX_US: u64 = 8000;
/// Time in which everything that boxes hold has arrived, or never will.
const SETTLED: Duration = Duration::from_secs(6);
/// A life that lasts longer hangs: retries last 9 s.
const LIFE_MAX: Duration = Duration::from_secs(90);

/// Offsets in each end's region: sources, places of WRITEs, buffers of receives, places of READs
/// and atomics, and the word that atomics change.
const SOURCE: usize = 0;
const TARGET: usize = AREA;
const INBOX: usize = 2 * AREA;
const FETCHED: usize = 3 * AREA;
const WORD: usize = 4 * AREA;
const REGION: usize = WORD + 64;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Verb {
    Write,
    WriteImmediate,
    Send,
    SendImmediate,
    /// Of the WRITE before it.
    Read {
        of: usize,
    },
    FetchAdd,
}

impl Verb {
    fn is_send(self) -> bool {
        matches!(self, Verb::Send | Verb::SendImmediate)
    }

    fn is_write(self) -> bool {
        matches!(self, Verb::Write | Verb::WriteImmediate)
    }

    fn is_received(self) -> bool {
        self.is_send() || self == Verb::WriteImmediate
    }

    fn has_immediate(self) -> bool {
        matches!(self, Verb::WriteImmediate | Verb::SendImmediate)
    }

    fn completes_as(self) -> CompletionOp {
        match self {
            Verb::Write | Verb::WriteImmediate => CompletionOp::Write,
            Verb::Send | Verb::SendImmediate => CompletionOp::Send,
            Verb::Read { .. } => CompletionOp::Read,
            Verb::FetchAdd => CompletionOp::FetchAdd,
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Message {
    verb: Verb,
    len: usize,
    /// Of its bytes, and what an atomic adds.
    pattern: u64,
    pause: Duration,
}

impl Message {
    fn data(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len];
        fill(self.pattern, &mut bytes);
        bytes
    }

    fn adds(&self) -> u64 {
        1 + (self.pattern & 0xffff)
    }

    fn immediate(&self) -> u32 {
        self.pattern as u32
    }
}

/// What one end sends in a life.
fn plan(seed: u64, life: u64, server: bool) -> Vec<Message> {
    let mut rng = SplitMix64::new(seed ^ life << 20 ^ u64::from(server) << 63);
    let mut written = None;
    (0..MESSAGES)
        .map(|number| {
            let long = rng.chance(0.5);
            let len = 1 + rng.below(if long { SLOT } else { MTU } as u64) as usize;
            let verb = match (rng.below(8), written) {
                (0..2, _) => Verb::Write,
                (2, _) => Verb::WriteImmediate,
                (3..5, _) => Verb::Send,
                (5, _) => Verb::SendImmediate,
                (6, Some(of)) => Verb::Read { of },
                _ => Verb::FetchAdd,
            };
            if verb.is_write() {
                written = Some(number);
            }
            let pause = Duration::from_micros(rng.below(PAUSE_MAX_US));
            Message { verb, len, pattern: rng.next_u64(), pause }
        })
        .collect()
}

/// Progress of what this end requests.
#[derive(Default)]
struct Requests {
    posted: usize,
    completed: usize,
    bytes: usize,
    fence: Option<usize>,
    /// Status of the first failure, and the time.
    failure: Option<(Status, u128)>,
}

/// Progress of what this end receives.
#[derive(Default)]
struct Receives {
    arrived: usize,
    bytes: usize,
}

struct Life<'a> {
    pair: Pair,
    region: &'a MemoryRegion,
    ours: Vec<Message>,
    theirs: Vec<Message>,
    requests: Requests,
    receives: Receives,
    /// Appears when an end has failed.
    over: PathBuf,
}

fn unix_ms() -> u128 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_millis())
}

pub fn run(place: ProcessRole, args: &Args) -> Result<Value, Fault> {
    let mut session = Session::open(place)?;
    let region = session.pd.register(REGION, Access::ALL)?;
    let mtu = Mtu::B1024;
    // A second, eight times.
    let path = PathSettings { mtu, timeout: 18, access: Access::ALL, ..PathSettings::default() };
    let begun = Instant::now();
    let mut lives = Vec::new();
    for life in 0.. {
        let goes_on = begun.elapsed().as_secs_f64() < args.seconds;
        let both = session.other.swap(&json!(goes_on))? == json!(true) && goes_on;
        if !both {
            break;
        }
        let told = live(&mut session, place.server, args, &path, &region, life);
        lives.push(told.map_err(|fault| format!("life {life}: {fault}"))?);
    }
    Ok(json!({ "lives": lives }))
}

/// One queue pair, from its connection to the last comparison.
fn live(
    session: &mut Session,
    server: bool,
    args: &Args,
    path: &PathSettings,
    region: &MemoryRegion,
    number: u64,
) -> Result<Value, Fault> {
    region.write(0, &vec![0; REGION]);
    let [ours, theirs] = [server, !server].map(|server| plan(args.seed, number, server));
    let begun = unix_ms();
    let pair = session.connect(path, region, |qp| {
        for (at, message) in received(&theirs).enumerate() {
            let piece = region.piece(INBOX + at * SLOT, SLOT as u32);
            let pieces = if message.verb.is_send() { &[piece][..] } else { &[] };
            qp.post_recv(at as u64, pieces)?;
        }
        Ok(())
    })?;
    let over = args.dir.join(format!("over-{number}"));
    let mut life = Life {
        pair,
        region,
        ours,
        theirs,
        requests: Requests::default(),
        receives: Receives::default(),
        over,
    };
    if !server {
        std::fs::write(args.dir.join(format!("life-{number}")), "")?;
    }
    life.work()?;
    let completed = json!(life.requests.completed);
    let theirs = session.other.swap(&completed)?.as_u64().ok_or("no count")? as usize;
    let placed = life.settle(theirs)?;
    let placed = session.other.swap(&json!(placed))?.as_u64().ok_or("no count")? as usize;
    // The other may still be comparing what this end's device sends again.
    session.other.agree("compared")?;
    Ok(life.told(begun, placed))
}

fn received(messages: &[Message]) -> impl Iterator<Item = &Message> {
    messages.iter().filter(|message| message.verb.is_received())
}

impl Life<'_> {
    fn told(&self, begun: u128, placed: usize) -> Value {
        let Requests { completed, bytes, fence, failure, .. } = &self.requests;
        let failure = failure.map(|(status, at)| {
            let message = &self.ours[*completed];
            let places = message.verb.is_write() || message.verb.is_send();
            json!({
                "at": at as u64, "status": format!("{status:?}"), "message": format!("{message:?}"),
                "is_long": places && message.len > MTU,
                "has_arrived": places && placed > *completed,
            })
        });
        json!({
            "begun": begun as u64, "ended": unix_ms() as u64, "messages": MESSAGES,
            "completed": completed, "placed": placed, "fence": fence, "failure": failure,
            "bytes": bytes + self.receives.bytes, "received": self.receives.arrived,
        })
    }

    /// Sends until all is completed or an end has failed.
    fn work(&mut self) -> Result<(), Fault> {
        let (begun, mut next, mut look) = (Instant::now(), Instant::now(), Instant::now());
        while self.requests.completed < MESSAGES && self.requests.failure.is_none() {
            let now = Instant::now();
            let Requests { posted, completed, .. } = self.requests;
            if posted < MESSAGES && posted - completed < DEPTH && now >= next {
                self.post(posted)?;
                self.requests.posted += 1;
                next = now + self.ours[posted].pause;
            }
            self.poll_sends()?;
            self.poll_receives()?;
            if now >= look {
                if self.over.exists() {
                    return Ok(());
                }
                look = now + Duration::from_millis(20);
                std::thread::sleep(Duration::from_micros(200));
            }
            if begun.elapsed() > LIFE_MAX {
                return Err(format!("hangs after {completed} of {posted} messages").into());
            }
        }
        if self.requests.failure.is_some() {
            std::fs::write(&self.over, "")?;
        }
        Ok(())
    }

    fn post(&self, at: usize) -> Result<(), Fault> {
        let message = self.ours[at];
        let (remote, rkey) = (self.pair.remote.address, self.pair.remote.rkey);
        let immediate = message.verb.has_immediate().then(|| message.immediate().to_be_bytes());
        let remote_address = match message.verb {
            Verb::Read { of } => remote + (TARGET + of * SLOT) as u64,
            Verb::FetchAdd => remote + WORD as u64,
            _ => remote + (TARGET + at * SLOT) as u64,
        };
        let (op, local, len) = match message.verb {
            Verb::Write | Verb::WriteImmediate => {
                (SendOp::Write { remote_address, rkey, immediate }, SOURCE, message.len)
            }
            Verb::Send | Verb::SendImmediate => {
                (SendOp::Send { immediate, invalidate: None }, SOURCE, message.len)
            }
            Verb::Read { of } => {
                (SendOp::Read { remote_address, rkey }, FETCHED, self.ours[of].len)
            }
            Verb::FetchAdd => {
                (SendOp::FetchAdd { remote_address, rkey, add: message.adds() }, FETCHED, 8)
            }
        };
        if local == SOURCE {
            self.region.write(SOURCE + at * SLOT, &message.data());
        }
        let piece = self.region.piece(local + at * SLOT, len as u32);
        Ok(self.pair.qp.post_send(at as u64, op, &[piece])?)
    }

    fn poll_sends(&mut self) -> Result<(), Fault> {
        let mut came = Vec::new();
        self.pair.send_cq.poll(64, |completion| came.push(completion))?;
        came.iter().try_for_each(|completion| self.sent(completion))
    }

    fn poll_receives(&mut self) -> Result<(), Fault> {
        let mut came = Vec::new();
        self.pair.recv_cq.poll(64, |completion| came.push(completion))?;
        came.iter().try_for_each(|completion| self.received(completion))
    }

    fn sent(&mut self, completion: &Completion) -> Result<(), Fault> {
        let at = self.requests.completed;
        if self.requests.failure.is_some() {
            let is_flushed = completion.status == Status::WrFlush;
            return if is_flushed { Ok(()) } else { Err(format!("{completion:?}").into()) };
        }
        if completion.wr_id != at as u64 {
            return Err(format!("{completion:?}, expected was message {at}").into());
        }
        if completion.status != Status::Success {
            self.requests.failure = Some((completion.status, unix_ms()));
            return Ok(());
        }
        let message = self.ours[at];
        if completion.op != message.verb.completes_as() {
            return Err(format!("{completion:?}, expected was {message:?}").into());
        }
        let expected = match message.verb {
            Verb::Read { of } => self.ours[of].data(),
            Verb::FetchAdd => sum(&self.ours[..at]).to_ne_bytes().to_vec(),
            _ => {
                self.requests.bytes += message.len;
                self.requests.completed += 1;
                return Ok(());
            }
        };
        if self.region.to_vec(FETCHED + at * SLOT, expected.len()) != expected {
            return Err(format!("message {at}, {message:?}, has another result").into());
        }
        self.requests.bytes += expected.len();
        self.requests.fence = Some(at);
        self.requests.completed += 1;
        Ok(())
    }

    fn received(&mut self, completion: &Completion) -> Result<(), Fault> {
        if completion.status == Status::WrFlush {
            return Ok(());
        }
        let at = self.receives.arrived;
        let message = received(&self.theirs).nth(at).ok_or("more than was sent")?;
        let op = match message.verb {
            Verb::WriteImmediate => CompletionOp::RecvWriteImmediate,
            _ => CompletionOp::Recv,
        };
        let immediate = message.verb.has_immediate().then(|| message.immediate());
        let is_right = completion.status == Status::Success
            && completion.wr_id == at as u64
            && completion.op == op
            && completion.byte_len as usize == message.len
            && completion.immediate.map(u32::from_be_bytes) == immediate;
        if !is_right {
            return Err(format!("{completion:?}, expected was {message:?}").into());
        }
        if message.verb.is_send() {
            let bytes = self.region.to_vec(INBOX + at * SLOT, message.len);
            if bytes != message.data() {
                return Err(format!("receive {at}, {message:?}, has other bytes").into());
            }
        }
        self.receives.bytes += message.len;
        self.receives.arrived += 1;
        Ok(())
    }

    /// Takes what arrives, but no further completions of requests, and waits until everything that
    /// the other end saw completed is
    /// there, or never will be; returns how many messages are.
    fn settle(&mut self, completed: usize) -> Result<usize, Fault> {
        let deadline = Instant::now() + SETTLED;
        loop {
            self.poll_receives()?;
            let placed = self.placed();
            match placed {
                Ok(placed) if placed >= completed => return Ok(placed),
                // More may arrive between two comparisons.
                _ if Instant::now() > deadline => return placed,
                _ => std::thread::sleep(Duration::from_millis(5)),
            }
        }
    }

    /// Number of the other end's messages that are there, with nothing behind the first gap.
    fn placed(&self) -> Result<usize, Fault> {
        let mut word = [0; 8];
        self.region.read(WORD, &mut word);
        let word = u64::from_ne_bytes(word);
        let (mut receives, mut gap) = (0, None);
        for (at, message) in self.theirs.iter().enumerate() {
            let place = match message.verb {
                verb if verb.is_send() => Some(INBOX + receives * SLOT),
                verb if verb.is_write() => Some(TARGET + at * SLOT),
                _ => None,
            };
            let mut is_whole =
                place.is_none_or(|place| self.region.to_vec(place, message.len) == message.data());
            if message.verb.is_received() {
                is_whole &= receives < self.receives.arrived;
                receives += 1;
            }
            is_whole &= message.verb != Verb::FetchAdd || word >= sum(&self.theirs[..=at]);
            if gap.is_none() && is_whole {
                continue;
            }
            let may_be_partial = *gap.get_or_insert(at) == at;
            if let Some(place) = place {
                self.check_rest(place, message, may_be_partial)
                    .map_err(|what| format!("message {at}, {message:?}, behind a gap: {what}"))?;
            }
        }
        let placed = gap.unwrap_or(MESSAGES);
        let arrived = received(&self.theirs[..placed]).count();
        if arrived != self.receives.arrived {
            return Err(format!("{} receives, {arrived} sent", self.receives.arrived).into());
        }
        let added = sum(&self.theirs[..placed]);
        if added != word {
            return Err(format!("the sum of atomics is {word}, {added} were added").into());
        }
        Ok(placed)
    }

    /// Checks that a message that is not there has written nothing, or whole packets of its
    /// beginning if it `may_be_partial`.
    fn check_rest(
        &self,
        place: usize,
        message: &Message,
        may_be_partial: bool,
    ) -> Result<(), Fault> {
        let (found, data) = (self.region.to_vec(place, SLOT), message.data());
        let same = found.iter().zip(&data).take_while(|(a, b)| a == b).count();
        let whole = if may_be_partial { same / MTU * MTU } else { 0 };
        match found[whole..].iter().position(|byte| *byte != 0) {
            None => Ok(()),
            Some(first) => Err(format!("byte {} was written", whole + first).into()),
        }
    }
}

/// What the atomics among these messages add.
fn sum(messages: &[Message]) -> u64 {
    let atomics = messages.iter().filter(|message| message.verb == Verb::FetchAdd);
    atomics.map(Message::adds).sum()
}
