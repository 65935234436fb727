//! Both sides WRITE, SEND and READ at once; each checks everything visible to it.
//!
//! A side posts a batch and then a SEND that marks its end. When the other's mark has arrived, so
//! have the other's WRITEs and SENDs of that batch, because requests are executed in order; then
//! memory is compared, and the next batch begins. Memory is compared with complete images, so that
//! excess bytes are found as well as missing ones.

use crate::plan::{Batch, Shape, Step, Verb, fill};
use crate::session::{Pair, Session};
use crate::{Fault, ProcessRole};
use longhaul_rdma::{
    Access, Completion, CompletionOp, MemoryRegion, Mtu, PathSettings, Piece, QueuePair, SendOp,
    Status,
};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

#[derive(clap::Args, Clone, Copy, Debug)]
pub struct Args {
    #[arg(long)]
    seed: u64,
    #[arg(long)]
    batches: usize,
    /// A batch ends when it has this many bytes
    #[arg(long)]
    batch_bytes: usize,
    /// Bytes of the longest message
    #[arg(long, default_value_t = 8 << 20)]
    largest: usize,
    /// Path MTU
    #[arg(long, default_value_t = 4096)]
    mtu: u32,
    /// ACK timeout exponent; 17 is 0.54 s, since the machine may be busy and the network lossy
    #[arg(long, default_value_t = 17)]
    timeout: u8,
}

/// A longer silence means that a completion is lost for good. The retry budget of a queue pair is a
/// few seconds.
const SILENCE_MAX: Duration = Duration::from_secs(60);
/// Bytes of the message that ends a batch.
const MARK_LEN: usize = 8;

/// The next expected completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Expected {
    wr_id: u64,
    op: CompletionOp,
    byte_len: usize,
    immediate: Option<u32>,
}

/// A region and its expected contents.
struct Checked {
    region: MemoryRegion,
    image: Vec<u8>,
}

impl Checked {
    fn new(session: &Session, len: usize, access: Access) -> Result<Self, Fault> {
        Ok(Checked { region: session.pd.register(len, access)?, image: vec![0; len] })
    }

    /// Compares a part of the region with its image.
    fn compare(&self, what: &str, from: usize, len: usize) -> Result<(), Fault> {
        let found = self.region.to_vec(from, len);
        let image = &self.image[from..from + len];
        if found == image {
            return Ok(());
        }
        let wrong = found.iter().zip(image).filter(|(a, b)| a != b).count();
        let first = found.iter().zip(image).position(|(a, b)| a != b).unwrap_or(0);
        Err(format!("{what}: {wrong} of {len} bytes are wrong, the first at {}", from + first)
            .into())
    }
}

struct Transfer {
    pair: Pair,
    ours: Vec<Batch>,
    theirs: Vec<Batch>,
    half: usize,
    /// Memory that peers write to and read from.
    target: Checked,
    /// Expected contents of the peer's target.
    remote_image: Vec<u8>,
    /// Memory for incoming SENDs, alternating.
    inbox: [Checked; 2],
    /// Memory for READ results.
    fetched: Checked,
    source: MemoryRegion,
    mark: MemoryRegion,
    started: Instant,
}

pub fn run(place: ProcessRole, args: &Args) -> Result<Value, Fault> {
    let Args { seed, batches, batch_bytes, largest, mtu, timeout } = *args;
    let shape = Shape { seed, batches, batch_bytes, largest };
    let mtu = Mtu::from_code((mtu.ilog2() - 7) as u8).ok_or("no path MTU")?;
    let path = PathSettings { mtu, timeout, ..PathSettings::default() };
    let mut session = Session::open(place)?;
    let writable = Access::LOCAL_WRITE;
    let mut target = Checked::new(&session, 2 * shape.half(), Access::ALL)?;
    fill(seed ^ u64::from(place.server), &mut target.image);
    target.region.write(0, &target.image);
    let mut remote_image = vec![0; target.image.len()];
    fill(seed ^ u64::from(!place.server), &mut remote_image);
    let inbox = [
        Checked::new(&session, shape.arena(), writable)?,
        Checked::new(&session, shape.arena(), writable)?,
    ];
    let mark = session.pd.register(2 * MARK_LEN, writable)?;
    let (ours, theirs) = (shape.plan(place.server), shape.plan(!place.server));
    let pair = session
        .connect(&path, &target.region, |qp| post_receives(qp, &theirs, 0, &inbox, &mark))?;
    let mut transfer = Transfer {
        pair,
        ours,
        theirs,
        half: shape.half(),
        target,
        remote_image,
        inbox,
        fetched: Checked::new(&session, shape.arena(), writable)?,
        source: session.pd.register(shape.arena(), Access::LOCAL_READ)?,
        mark,
        started: Instant::now(),
    };
    for number in 0..batches {
        transfer
            .batch(number)
            .map_err(|e| format!("seed {seed}, batch {number} of {batches}: {e}"))?;
    }
    session.other.agree("done")?;
    transfer.nothing_more(Duration::from_millis(100))?;
    session.other.agree("silent")?;
    let steps = || transfer.ours.iter().flat_map(|batch| &batch.steps);
    Ok(json!({
        "seed": seed,
        "messages": steps().count() + batches,
        "bytes": steps().map(|step| step.len).sum::<usize>(),
        "longest": steps().map(|step| step.len).max(),
        "seconds": transfer.started.elapsed().as_secs_f64(),
        "counters": session.counters()?,
    }))
}

/// Receives for everything that the peer sends in batch `number`, its mark last.
fn post_receives(
    qp: &QueuePair,
    theirs: &[Batch],
    number: usize,
    inbox: &[Checked; 2],
    mark: &MemoryRegion,
) -> Result<(), Fault> {
    let Some(batch) = theirs.get(number) else { return Ok(()) };
    for step in batch.steps.iter().filter(|step| step.verb.is_received()) {
        match step.verb {
            Verb::WriteImmediate(_) => qp.post_recv(!step.wr_id, &[])?,
            _ => {
                let inbox = &inbox[number % 2].region;
                qp.post_recv(
                    !step.wr_id,
                    &pieces(inbox, step.remote, step.len + step.slack, step.pieces),
                )?;
            }
        }
    }
    qp.post_recv(mark_id(number), &[mark.piece(0, MARK_LEN as u32)])?;
    Ok(())
}

fn mark_id(batch: usize) -> u64 {
    u64::MAX - batch as u64
}

/// `len` bytes from `from` on, in `count` pieces.
pub fn pieces(region: &MemoryRegion, from: usize, len: usize, count: usize) -> Vec<Piece> {
    let count = count.clamp(1, len.max(1));
    let bounds: Vec<usize> = (0..=count).map(|i| len * i / count).collect();
    bounds.windows(2).map(|w| region.piece(from + w[0], (w[1] - w[0]) as u32)).collect()
}

impl Transfer {
    fn batch(&mut self, number: usize) -> Result<(), Fault> {
        // Before our mark permits the peer to continue.
        post_receives(&self.pair.qp, &self.theirs, number + 1, &self.inbox, &self.mark)?;
        let sent = self.post(number)?;
        let received = self.receives(number);
        self.collect(&sent, &received)?;
        self.compare(number)
    }

    /// Posts our batch and its mark; returns the expected completions.
    fn post(&mut self, number: usize) -> Result<Vec<Expected>, Fault> {
        let Self { pair, ours, source, fetched, remote_image, .. } = self;
        let mut expected = Vec::new();
        let mut data = Vec::new();
        for step in &ours[number].steps {
            let remote_address = pair.remote.address + step.remote as u64;
            let rkey = pair.remote.rkey;
            let (op, completes_as) = match step.verb {
                Verb::Write => {
                    (SendOp::Write { remote_address, rkey, immediate: None }, CompletionOp::Write)
                }
                Verb::WriteImmediate(i) => {
                    let immediate = Some(i.to_be_bytes());
                    (SendOp::Write { remote_address, rkey, immediate }, CompletionOp::Write)
                }
                Verb::Send => {
                    (SendOp::Send { immediate: None, invalidate: None }, CompletionOp::Send)
                }
                Verb::SendImmediate(i) => {
                    let immediate = Some(i.to_be_bytes());
                    (SendOp::Send { immediate, invalidate: None }, CompletionOp::Send)
                }
                Verb::Read => (SendOp::Read { remote_address, rkey }, CompletionOp::Read),
            };
            let local = if let Verb::Read = step.verb { &fetched.region } else { &*source };
            match step.verb {
                Verb::Read => {
                    let found = &remote_image[step.remote..step.remote + step.len];
                    fetched.image[step.local..step.local + step.len].copy_from_slice(found);
                }
                _ => {
                    data.resize(step.len, 0);
                    fill(step.pattern, &mut data);
                    source.write(step.local, &data);
                }
            }
            if let Verb::Write | Verb::WriteImmediate(_) = step.verb {
                remote_image[step.remote..step.remote + step.len].copy_from_slice(&data);
            }
            let parts = pieces(local, step.local, step.len, step.pieces);
            pair.qp.post(step.wr_id, op, &parts, step.signaled)?;
            if step.signaled {
                let Step { wr_id, len: byte_len, .. } = *step;
                expected.push(Expected { wr_id, op: completes_as, byte_len, immediate: None });
            }
        }
        let immediate = Some((number as u32).to_be_bytes());
        let op = SendOp::Send { immediate, invalidate: None };
        pair.qp.post_inline(mark_id(number), op, &(number as u64).to_be_bytes())?;
        let wr_id = mark_id(number);
        expected.push(Expected {
            wr_id,
            op: CompletionOp::Send,
            byte_len: MARK_LEN,
            immediate: None,
        });
        Ok(expected)
    }

    /// Expected receives of batch `number`.
    fn receives(&self, number: usize) -> Vec<Expected> {
        let steps = self.theirs[number].steps.iter().filter(|step| step.verb.is_received());
        let mut expected: Vec<Expected> = steps
            .map(|step| {
                let (op, immediate) = match step.verb {
                    Verb::WriteImmediate(i) => (CompletionOp::RecvWriteImmediate, Some(i)),
                    Verb::SendImmediate(i) => (CompletionOp::Recv, Some(i)),
                    _ => (CompletionOp::Recv, None),
                };
                Expected { wr_id: !step.wr_id, op, byte_len: step.len, immediate }
            })
            .collect();
        let immediate = Some(number as u32);
        let (wr_id, byte_len) = (mark_id(number), MARK_LEN);
        expected.push(Expected { wr_id, op: CompletionOp::Recv, byte_len, immediate });
        expected
    }

    /// Waits for all expected completions, each in its order.
    fn collect(&self, sent: &[Expected], received: &[Expected]) -> Result<(), Fault> {
        let (mut sent, mut received) = (sent.iter(), received.iter());
        let mut heard = Instant::now();
        while sent.len() > 0 || received.len() > 0 {
            let found =
                take(&self.pair.send_cq, &mut sent)? + take(&self.pair.recv_cq, &mut received)?;
            if found > 0 {
                heard = Instant::now();
            } else if heard.elapsed() > SILENCE_MAX {
                let state = self.pair.qp.query()?.state;
                return Err(format!(
                    "no completion for {SILENCE_MAX:?} in state {state:?}; missing: {} of sends \
                     (next {:x?}), {} of receives (next {:x?})",
                    sent.len(),
                    sent.next(),
                    received.len(),
                    received.next()
                )
                .into());
            }
        }
        Ok(())
    }

    /// Compares all memory that batch `number` may have changed.
    fn compare(&mut self, number: usize) -> Result<(), Fault> {
        let inbox = &mut self.inbox[number % 2];
        let mut filled = 0;
        for step in &self.theirs[number].steps {
            let place = step.remote..step.remote + step.len;
            match step.verb {
                Verb::Write | Verb::WriteImmediate(_) => {
                    fill(step.pattern, &mut self.target.image[place])
                }
                Verb::Send | Verb::SendImmediate(_) => {
                    filled = place.end + step.slack;
                    fill(step.pattern, &mut inbox.image[place]);
                }
                Verb::Read => {}
            }
        }
        self.target.compare(
            "memory that the peer writes to",
            (number % 2) * self.half,
            self.half,
        )?;
        inbox.compare("received messages", 0, filled)?;
        let fetched = self.ours[number].steps.last().map_or(0, |step| step.local + step.len);
        self.fetched.compare("memory that was read from the peer", 0, fetched)
    }

    /// Fails if an unexpected completion arrives.
    fn nothing_more(&self, wait: Duration) -> Result<(), Fault> {
        let until = Instant::now() + wait;
        let mut surplus = None;
        while Instant::now() < until && surplus.is_none() {
            self.pair.send_cq.poll(1, |completion| surplus = Some(completion))?;
            self.pair.recv_cq.poll(1, |completion| surplus = Some(completion))?;
        }
        match surplus {
            Some(completion) => Err(format!("one completion too many: {completion:x?}").into()),
            None => Ok(()),
        }
    }
}

/// Polls once and compares completions with the `expected` ones; further completions stay for the
/// next batch.
fn take(
    cq: &longhaul_rdma::CompletionQueue,
    expected: &mut std::slice::Iter<'_, Expected>,
) -> Result<usize, Fault> {
    let mut wrong = None;
    let found = cq.poll(expected.len().min(16), |completion| {
        let next = expected.next();
        if !next.is_some_and(|next| is_as_expected(&completion, next)) && wrong.is_none() {
            wrong = Some(format!("a completion is {completion:x?}, expected was {next:x?}"));
        }
    })?;
    match wrong {
        Some(wrong) => Err(wrong.into()),
        None => Ok(found),
    }
}

fn is_as_expected(completion: &Completion, expected: &Expected) -> bool {
    completion.status == Status::Success
        && completion.wr_id == expected.wr_id
        && completion.op == expected.op
        && completion.byte_len as usize == expected.byte_len
        && completion.immediate.map(u32::from_be_bytes) == expected.immediate
}
