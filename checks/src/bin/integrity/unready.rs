//! SENDs to receivers that accept a few messages, post nothing until the test permits it, and then
//! accept the rest.

use crate::session::{Pair, Session};
use crate::{Fault, ProcessRole};
use longhaul_rdma::{Access, MemoryRegion, PathSettings, SendOp, Status};
use serde_json::{Value, json};
use std::ops::Range;
use std::path::PathBuf;
use std::thread::sleep;
use std::time::{Duration, Instant};

#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// Queue pairs
    #[arg(long)]
    qps: usize,
    /// SENDs of each queue pair
    #[arg(long)]
    messages: usize,
    /// Bytes of each SEND
    #[arg(long)]
    size: usize,
    /// SENDs of each queue pair that receives are posted for at once
    #[arg(long)]
    ready: usize,
    /// The server posts the other receives once this file exists
    #[arg(long)]
    until: PathBuf,
}

/// Time limit once receives are posted.
const LIMIT: Duration = Duration::from_secs(60);

pub fn run(place: ProcessRole, args: &Args) -> Result<Value, Fault> {
    let mut session = Session::open(place)?;
    let per_qp = args.messages * args.size;
    let region = session.pd.register(args.qps * per_qp, Access::ALL)?;
    // A second: twenty messages of a mebibyte take 200 ms in a busy machine's lab at 1 Gbit/s.
    let path = PathSettings { timeout: 18, ..PathSettings::default() };
    let mut connect = |qp| {
        session.connect(&path, &region, |queue_pair| {
            let post = |message| {
                let piece = region.piece(place_of(args, qp, message), args.size as u32);
                queue_pair.post_recv(message as u64, &[piece])
            };
            Ok((0..args.ready).try_for_each(post)?)
        })
    };
    let pairs: Vec<Pair> = (0..args.qps).map(&mut connect).collect::<Result<_, _>>()?;
    if place.server {
        take(&pairs, &region, args, 0..args.ready)?;
        while !args.until.exists() {
            sleep(Duration::from_millis(10));
        }
        receive(&pairs, &region, args)?;
    } else {
        send(&pairs, &region, args)?;
    }
    session.other.agree("done")?;
    Ok(json!({ "messages": args.qps * args.messages, "counters": session.counters()? }))
}

/// Fill byte of a message.
fn filling(qp: usize, message: usize) -> u8 {
    (qp * 31 + message * 7 + 1) as u8
}

/// Offset of a message of a queue pair.
fn place_of(args: &Args, qp: usize, message: usize) -> usize {
    (qp * args.messages + message) * args.size
}

/// Sends the messages with receives one by one, so that each is acknowledged separately, then all
/// the others.
fn send(pairs: &[Pair], region: &MemoryRegion, args: &Args) -> Result<(), Fault> {
    let mut completed = vec![0; pairs.len()];
    for message in 0..args.ready {
        post(pairs, region, args, message..message + 1)?;
        complete(pairs, args, &mut completed, message + 1)?;
    }
    post(pairs, region, args, args.ready..args.messages)?;
    complete(pairs, args, &mut completed, args.messages)
}

fn post(
    pairs: &[Pair],
    region: &MemoryRegion,
    args: &Args,
    messages: Range<usize>,
) -> Result<(), Fault> {
    for (qp, pair) in pairs.iter().enumerate() {
        for message in messages.clone() {
            let at = place_of(args, qp, message);
            region.write(at, &vec![filling(qp, message); args.size]);
            let op = SendOp::Send { immediate: None, invalidate: None };
            pair.qp.post_send(message as u64, op, &[region.piece(at, args.size as u32)])?;
        }
    }
    Ok(())
}

/// Polls until this many messages of each queue pair are complete.
fn complete(
    pairs: &[Pair],
    args: &Args,
    completed: &mut [usize],
    messages: usize,
) -> Result<(), Fault> {
    let mut ready_at = None;
    while completed.iter().any(|&count| count < messages) {
        if ready_at.is_none() && (messages <= args.ready || args.until.exists()) {
            ready_at = Some(Instant::now());
        }
        if ready_at.is_some_and(|at| at.elapsed() > LIMIT) {
            return Err(format!("{completed:?} of {messages} messages each").into());
        }
        for (qp, pair) in pairs.iter().enumerate() {
            let mut wrong = None;
            pair.send_cq.poll(16, |completion| {
                if (completion.wr_id, completion.status) != (completed[qp] as u64, Status::Success)
                {
                    wrong.get_or_insert(format!(
                        "queue pair {qp}, after {}: {completion:?}",
                        completed[qp]
                    ));
                }
                completed[qp] += 1;
            })?;
            if let Some(wrong) = wrong {
                return Err(wrong.into());
            }
        }
    }
    Ok(())
}

/// Posts the receives one at a time, so that each message meets a receiver that is not ready.
fn receive(pairs: &[Pair], region: &MemoryRegion, args: &Args) -> Result<(), Fault> {
    for message in args.ready..args.messages {
        for (qp, pair) in pairs.iter().enumerate() {
            let at = place_of(args, qp, message);
            pair.qp.post_recv(message as u64, &[region.piece(at, args.size as u32)])?;
        }
        take(pairs, region, args, message..message + 1)?;
    }
    Ok(())
}

/// Waits for messages of all queue pairs, and checks every byte.
fn take(
    pairs: &[Pair],
    region: &MemoryRegion,
    args: &Args,
    messages: Range<usize>,
) -> Result<(), Fault> {
    for message in messages {
        for (qp, pair) in pairs.iter().enumerate() {
            let completion = pair.recv_cq.next(LIMIT)?;
            if (completion.wr_id, completion.status) != (message as u64, Status::Success) {
                return Err(format!("queue pair {qp}, message {message}: {completion:?}").into());
            }
            let filled = region.to_vec(place_of(args, qp, message), args.size);
            if filled.iter().any(|&byte| byte != filling(qp, message)) {
                return Err(format!("queue pair {qp}, message {message}: wrong bytes").into());
            }
        }
    }
    Ok(())
}
