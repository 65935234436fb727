//! WRITEs in one direction, and the failure of the queue pair when the network fails.

use crate::session::{Pair, Session};
use crate::{Fault, ProcessRole};
use longhaul_rdma::{Access, MemoryRegion, Mtu, PathSettings, QpState, SendOp, Status};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

#[derive(clap::Args, Clone, Copy, Debug)]
pub struct Args {
    /// Bytes of each WRITE
    #[arg(long)]
    size: usize,
    /// WRITEs outstanding
    #[arg(long, default_value_t = 64)]
    depth: u64,
    /// WRITEs in all
    #[arg(long)]
    count: u64,
    /// Path MTU
    #[arg(long, default_value_t = 4096)]
    mtu: u32,
}

/// A longer silence exceeds the retry budget: eight times 67 ms, at most four times as long.
const SILENCE_MAX: Duration = Duration::from_secs(60);

pub fn run(place: ProcessRole, args: &Args) -> Result<Value, Fault> {
    let mut session = Session::open(place)?;
    let region = session.pd.register(args.size, Access::ALL)?;
    let mtu = Mtu::from_code((args.mtu.ilog2() - 7) as u8).ok_or("no path MTU")?;
    let pair =
        session.connect(&PathSettings { mtu, ..PathSettings::default() }, &region, |_| Ok(()))?;
    let end = if place.server { Value::Null } else { write(&pair, &region, args)? };
    // While the server waits here, its engine responds.
    session.other.agree("done")?;
    Ok(json!({ "end": end, "counters": session.counters()? }))
}

/// Keeps `depth` WRITEs outstanding until all are complete or the first fails. Then nothing more is
/// posted, and everything outstanding must complete, in order and once.
fn write(pair: &Pair, region: &MemoryRegion, args: &Args) -> Result<Value, Fault> {
    let op = SendOp::Write {
        remote_address: pair.remote.address,
        rkey: pair.remote.rkey,
        immediate: None,
    };
    let (mut posted, mut completed) = (0, 0);
    let mut failure = None;
    let mut heard = Instant::now();
    while completed < posted || (posted < args.count && failure.is_none()) {
        while failure.is_none() && posted < args.count && posted - completed < args.depth {
            pair.qp.post_send(posted, op, &[region.piece(0, args.size as u32)])?;
            posted += 1;
        }
        let mut wrong = None;
        let found = pair.send_cq.poll(16, |completion| {
            let expected = match failure {
                None => {
                    completion.status == Status::Success
                        || completion.status == Status::RetryExceeded
                }
                Some(_) => completion.status == Status::WrFlush,
            };
            if completion.wr_id != completed || !expected {
                wrong.get_or_insert(format!(
                    "expected {completed}, {failure:?} before it; got {completion:?}"
                ));
            }
            if completion.status != Status::Success && failure.is_none() {
                failure = Some((completed, completion.status as u8));
            }
            completed += 1;
        })?;
        if let Some(wrong) = wrong {
            return Err(wrong.into());
        }
        if found > 0 {
            heard = Instant::now();
        } else if heard.elapsed() > SILENCE_MAX {
            return Err(format!("{posted} posted, {completed} completed, then silence").into());
        }
    }
    let state = pair.qp.query()?.state;
    if failure.is_some() != (state == QpState::Error) {
        return Err(format!("state {state:?} after {failure:?}").into());
    }
    Ok(json!({
        "posted": posted,
        "succeeded": failure.map_or(completed, |(first, _)| first),
        "status": failure.map_or(0, |(_, status)| status),
        "flushed": failure.map_or(0, |(first, _)| completed - first - 1),
    }))
}
