//! Requests that a responder must refuse: the requester's status, and the event and state at both
//! ends.

use crate::session::{Pair, Session};
use crate::{Fault, ProcessRole};
use longhaul_rdma::{
    Access, AsyncEvent, CompletionOp, MemoryRegion, Mtu, PathSettings, QpState, SendOp, Status,
};
use longhaul_units::RKey;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

#[derive(clap::Args, Clone, Copy, Debug)]
pub struct Args {
    /// An accelerator acknowledges WRITEs before the responder has seen them
    #[arg(long)]
    early: bool,
}

const LEN: usize = 8192;
const LIMIT: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug)]
enum Case {
    WrongRkey,
    PastTheEnd,
    BeforeTheStart,
    AroundTheAddressSpace,
    NotPermitted,
}

const CASES: [Case; 5] = [
    Case::WrongRkey,
    Case::PastTheEnd,
    Case::BeforeTheStart,
    Case::AroundTheAddressSpace,
    Case::NotPermitted,
];

pub fn run(place: ProcessRole, args: &Args) -> Result<Value, Fault> {
    let mut session = Session::open(place)?;
    let mut refused = 0;
    for case in CASES {
        for read in [false, true] {
            let outcome = refuse(&mut session, place, case, read, args.early && !read);
            outcome
                .map_err(|e| format!("{} {case:?}: {e}", if read { "READ" } else { "WRITE" }))?;
            refused += 1;
        }
    }
    Ok(json!({ "refused": refused, "counters": session.counters()? }))
}

fn refuse(
    session: &mut Session,
    place: ProcessRole,
    case: Case,
    read: bool,
    early: bool,
) -> Result<(), Fault> {
    let access = match case {
        Case::NotPermitted if read => Access::LOCAL_WRITE | Access::REMOTE_WRITE,
        Case::NotPermitted => Access::LOCAL_WRITE | Access::REMOTE_READ,
        _ => Access::ALL,
    };
    let region = session.pd.register(LEN, access)?;
    let before = vec![0x5a; LEN];
    region.write(0, &before);
    let buffer = session.pd.register(LEN, Access::LOCAL_WRITE)?;
    // A second: on a busy machine the peer may not run for longer than a default timeout.
    let pair = session.connect(
        &PathSettings { mtu: Mtu::B1024, timeout: 18, ..PathSettings::default() },
        &region,
        |qp| Ok(qp.post_recv(77, &[buffer.piece(0, 64)])?),
    )?;
    if place.server {
        session.other.agree("refused")?;
        wait_for_error(session, &pair)?;
        flushed(&pair, &[77])?;
        if region.to_vec(0, LEN) != before {
            return Err("memory has changed".into());
        }
    } else {
        if early {
            request_early(&pair, &buffer, case)?
        } else {
            request(&pair, &buffer, case, read)?
        }
        if pair.qp.query()?.state != QpState::Error {
            return Err(format!("the requester is in state {:?}", pair.qp.query()?.state).into());
        }
        flushed(&pair, &[77])?;
        session.other.agree("refused")?;
    }
    session.other.agree("checked")
}

fn bad_request(pair: &Pair, case: Case, read: bool) -> SendOp {
    let (address, key) = (pair.remote.address, pair.remote.rkey);
    let (remote_address, rkey) = match case {
        Case::WrongRkey => (address, RKey(key.0 ^ 0x55)),
        Case::PastTheEnd => (address + LEN as u64 - 1999, key),
        Case::BeforeTheStart => (address - 1, key),
        Case::AroundTheAddressSpace => (u64::MAX - 999, key),
        Case::NotPermitted => (address, key),
    };
    match read {
        true => SendOp::Read { remote_address, rkey },
        false => SendOp::Write { remote_address, rkey, immediate: None },
    }
}

/// The invalid request fails, and later ones are flushed.
fn request(pair: &Pair, buffer: &MemoryRegion, case: Case, read: bool) -> Result<(), Fault> {
    let good = SendOp::Send { immediate: None, invalidate: None };
    pair.qp.post_send(1, bad_request(pair, case, read), &[buffer.piece(0, 2000)])?;
    pair.qp.post_send(2, good, &[buffer.piece(0, 8)])?;
    pair.qp.post_send(3, good, &[buffer.piece(0, 8)])?;
    for (wr_id, status) in [(1, Status::RemoteAccess), (2, Status::WrFlush), (3, Status::WrFlush)] {
        let completion = pair.send_cq.next(LIMIT)?;
        if (completion.wr_id, completion.status) != (wr_id, status) {
            return Err(format!("expected {wr_id} {status:?}, got {completion:?}").into());
        }
    }
    Ok(())
}

/// The invalid WRITE may succeed, as may later ones until the refusal arrives; then the queue pair
/// fails.
fn request_early(pair: &Pair, buffer: &MemoryRegion, case: Case) -> Result<(), Fault> {
    let begun = Instant::now();
    pair.qp.post_send(1, bad_request(pair, case, false), &[buffer.piece(0, 2000)])?;
    let mut wr_id = 1;
    loop {
        let completion = pair.send_cq.next(LIMIT)?;
        if completion.wr_id != wr_id {
            return Err(format!("expected {wr_id}, got {completion:?}").into());
        }
        match completion.status {
            Status::Success if begun.elapsed() < LIMIT => {}
            Status::RemoteAccess => return Ok(()),
            _ => {
                return Err(format!(
                    "expected success or a remote access error, got {completion:?}"
                )
                .into());
            }
        }
        wr_id += 1;
        let good = SendOp::Write {
            remote_address: pair.remote.address,
            rkey: pair.remote.rkey,
            immediate: None,
        };
        pair.qp.post_send(wr_id, good, &[buffer.piece(0, 8)])?;
    }
}

/// Waits for the state and the event of a responder that must refuse a request.
fn wait_for_error(session: &Session, pair: &Pair) -> Result<(), Fault> {
    let until = Instant::now() + LIMIT;
    let mut event = None;
    while event.is_none() || pair.qp.query()?.state != QpState::Error {
        if Instant::now() > until {
            let state = pair.qp.query()?.state;
            return Err(
                format!("the responder is in state {state:?}, its event is {event:?}").into()
            );
        }
        session.device.engine().turn()?;
        event = event.or_else(|| session.device.asynchronous_event());
    }
    match event {
        Some(AsyncEvent::Qp { cookie, kind })
            if cookie == u64::from(pair.qp.qpn().get()) && format!("{kind:?}") == "AccessError" =>
        {
            Ok(())
        }
        other => Err(format!("the event is {other:?}").into()),
    }
}

/// Checks that posted receives are flushed.
fn flushed(pair: &Pair, wr_ids: &[u64]) -> Result<(), Fault> {
    for &wr_id in wr_ids {
        let completion = pair.recv_cq.next(LIMIT)?;
        if (completion.wr_id, completion.status) != (wr_id, Status::WrFlush) {
            return Err(
                format!("expected receive {wr_id} to be flushed, got {completion:?}").into()
            );
        }
        debug_assert!(matches!(
            completion.op,
            CompletionOp::Recv | CompletionOp::RecvWriteImmediate
        ));
    }
    Ok(())
}
