//! Every operation on many queue pairs, in both directions at once, for several rounds.
//!
//! In a round each queue pair runs its batches, or is abandoned with data in flight. Then all are
//! connected again with other PSNs: the same queue pairs after a reset, or new ones by the
//! connection manager.

mod lane;
mod plan;
mod targets;
mod unreliable;

use crate::session::{Remote, Session};
use crate::{Fault, ProcessRole};
use lane::{Lane, Layout, Tally};
use longhaul_rdma::{
    Access, Completion, CompletionQueue, Connection, Endpoint, Listener, MemoryRegion, Mtu,
    PathSettings, QpKind, QpState, QueuePair, QueuePairSettings,
};
use longhaul_rnic::QpAttr;
use longhaul_units::{Psn, Qpn, RKey, Rng, SplitMix64};
use plan::Shape;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};
use unreliable::Loose;

#[derive(clap::Args, Clone, Copy, Debug)]
pub struct Args {
    #[arg(long)]
    seed: u64,
    /// Begins no round after this time, in seconds
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// RC queue pairs
    #[arg(long, default_value_t = 16)]
    qps: usize,
    /// UC queue pairs, and as many UD ones
    #[arg(long, default_value_t = 1)]
    unreliable: usize,
    /// The path may repeat or reorder what is unreliable
    #[arg(long)]
    any_order: bool,
    /// Connects by the connection manager
    #[arg(long)]
    cm: bool,
    /// Gives so many rounds up with data in flight before each that it ends
    #[arg(long, default_value_t = 0)]
    abandon: u64,
    /// Batches of a round
    #[arg(long, default_value_t = 4)]
    batches: usize,
    /// A batch ends when it has this many bytes
    #[arg(long, default_value_t = 150_000)]
    batch_bytes: usize,
    /// Bytes of the longest message
    #[arg(long, default_value_t = 256 << 10)]
    largest: usize,
    /// Path MTU
    #[arg(long, default_value_t = 1024)]
    mtu: u32,
    /// ACK timeout exponent; 17 is 0.54 s, since the machine may be busy and the network lossy
    #[arg(long, default_value_t = 17)]
    timeout: u8,
}

/// A longer silence means that a completion is lost for good.
const SILENCE_MAX: Duration = Duration::from_secs(90);
/// A lost connection manager message costs seconds.
const CONNECT_MAX: Duration = Duration::from_secs(50);
const PORT: u16 = 18515;

/// Queue pairs with room for a batch, its mark and the receives of two batches.
const SETTINGS: QueuePairSettings = QueuePairSettings {
    kind: QpKind::Rc,
    send_depth: 64,
    recv_depth: 128,
    segments_max: 4,
    inline_max: 64,
};

/// State of one side across rounds.
struct Stress {
    session: Session,
    args: Args,
    server: bool,
    path: PathSettings,
    cq: CompletionQueue,
    region: MemoryRegion,
    listener: Option<Listener>,
    /// Queue pairs to reuse after a reset.
    spare: Vec<QueuePair>,
    loose: Vec<Loose>,
    tally: Tally,
}

/// The lanes of a round, and their connections.
struct Round {
    lanes: Vec<Lane>,
    connections: Vec<Connection>,
    by_qpn: HashMap<Qpn, usize>,
}

pub fn run(place: ProcessRole, args: &Args) -> Result<Value, Fault> {
    let begun = Instant::now();
    let mut stress = Stress::open(place, *args)?;
    let (mut rounds, mut abandoned) = (0, 0);
    loop {
        let seed = SplitMix64::new(args.seed.wrapping_add(rounds << 32)).next_u64();
        let is_given_up = rounds % (args.abandon + 1) < args.abandon;
        let done = stress.round(seed, is_given_up);
        done.map_err(|e| format!("seed {}, round {rounds}, {is_given_up}: {e}", args.seed))?;
        rounds += 1;
        abandoned += u64::from(is_given_up);
        // The client's clock decides.
        let is_over = !is_given_up && begun.elapsed().as_secs_f64() > args.seconds;
        let theirs = stress.session.other.swap(&json!(is_over))? == true;
        if (place.server && theirs) || (!place.server && is_over) {
            break;
        }
    }
    let Tally { messages, bytes, invalidated, atomics } = stress.tally;
    let of_loose = |count: fn(&Loose) -> u64| stress.loose.iter().map(count).sum::<u64>();
    Ok(json!({
        "seed": args.seed, "rounds": rounds, "abandoned": abandoned,
        "messages": messages, "bytes": bytes, "invalidated": invalidated, "atomics": atomics,
        "uc": of_loose(|loose| if loose.is_uc() { loose.received.sends } else { 0 }),
        "uc_immediate_writes": of_loose(|loose| loose.received.writes),
        "uc_writes": of_loose(Loose::quiet_writes),
        "ud": of_loose(|loose| if loose.is_uc() { 0 } else { loose.received.sends }),
        "seconds": begun.elapsed().as_secs_f64(),
    }))
}

impl Stress {
    fn open(place: ProcessRole, args: Args) -> Result<Self, Fault> {
        let mut session = Session::open(place)?;
        let mtu = Mtu::from_code((args.mtu.ilog2() - 7) as u8).ok_or("no path MTU")?;
        let path = PathSettings {
            mtu,
            timeout: args.timeout,
            access: Access::ALL,
            ..PathSettings::default()
        };
        let shape = Shape { seed: 0, largest: args.largest, batch_bytes: args.batch_bytes };
        let region = session.pd.register(args.qps * Layout::len(shape), Access::ALL)?;
        let cq = session.device.create_cq(1 << 17)?;
        let listener =
            if args.cm && place.server { Some(session.device.listen(PORT)?) } else { None };
        let mut loose = Vec::new();
        for number in 0..2 * args.unreliable as u64 {
            let kind = if number.is_multiple_of(2) { QpKind::Uc } else { QpKind::Ud };
            let seed = args.seed << 20 ^ number << 50;
            loose.push(Loose::new(&session, &cq, kind, place.server, seed, args.any_order)?);
        }
        let qpns: Vec<u32> = loose.iter().map(|loose| loose.qp.qpn().get()).collect();
        let ip = session.device.engine().attach().ip_addr();
        let addresses: Vec<u64> = loose.iter().map(|loose| loose.offer().address).collect();
        let rkeys: Vec<u32> = loose.iter().map(|loose| loose.offer().rkey.0).collect();
        let ours = json!({ "ip": ip, "qpns": qpns, "addresses": addresses, "rkeys": rkeys });
        let theirs = session.other.swap(&ours)?;
        let ip = theirs["ip"].as_str().unwrap_or_default().parse()?;
        let (qpns, rkeys) = (numbers(&theirs["qpns"])?, numbers(&theirs["rkeys"])?);
        let targets = numbers(&theirs["addresses"])?.into_iter().zip(rkeys);
        for (loose, (qpn, (address, rkey))) in loose.iter_mut().zip(qpns.into_iter().zip(targets)) {
            let targets = Remote { address, rkey: RKey(rkey as u32) };
            loose.connect(&session, ip, (Qpn::new(qpn as u32), targets), &path)?;
        }
        session.other.agree("beside")?;
        let (server, spare, tally) = (place.server, Vec::new(), Tally::default());
        Ok(Stress { session, args, server, path, cq, region, listener, spare, loose, tally })
    }

    /// Connects all lanes, completes or abandons them, and makes the final checks.
    fn round(&mut self, seed: u64, is_given_up: bool) -> Result<(), Fault> {
        let mut round = self.lanes(seed)?;
        self.connect(seed, &mut round)?;
        let end = is_given_up.then(|| Instant::now() + Duration::from_millis(3 + seed % 60));
        self.work(&mut round, end)?;
        self.session.other.agree("round")?;
        if !is_given_up {
            self.check_words(&round)?;
        }
        for lane in &round.lanes {
            let Tally { messages, bytes, invalidated, atomics } = lane.tally;
            self.tally.messages += messages;
            self.tally.bytes += bytes;
            self.tally.invalidated += invalidated;
            self.tally.atomics += atomics;
        }
        self.end(round, is_given_up)
    }

    fn lanes(&mut self, seed: u64) -> Result<Round, Fault> {
        let shape = Shape { seed, largest: self.args.largest, batch_bytes: self.args.batch_bytes };
        let (mut lanes, mut by_qpn) = (Vec::new(), HashMap::new());
        for number in 0..self.args.qps {
            let qp = match self.spare.pop() {
                Some(qp) => qp,
                None => self.session.device.create_qp(
                    &self.session.pd,
                    &self.cq,
                    &self.cq,
                    &SETTINGS,
                )?,
            };
            qp.initialize(&self.path)?;
            by_qpn.insert(qp.qpn(), number);
            lanes.push(Lane::new(number, qp, self.server, shape, self.args.batches, &self.region)?);
        }
        Ok(Round { lanes, connections: Vec::new(), by_qpn })
    }

    fn connect(&mut self, seed: u64, round: &mut Round) -> Result<(), Fault> {
        let qpns: Vec<u32> = round.lanes.iter().map(|lane| lane.qp.qpn().get()).collect();
        let ours = json!({
            "ip": self.session.device.engine().attach().ip_addr(),
            "address": self.region.address(0), "rkey": self.region.rkey().0, "qpns": qpns,
        });
        let theirs = self.session.other.swap(&ours)?;
        let ip: IpAddr = theirs["ip"].as_str().unwrap_or_default().parse()?;
        let qpns = numbers(&theirs["qpns"])?;
        for (lane, qpn) in round.lanes.iter().zip(qpns) {
            let connection = match (&self.listener, self.args.cm) {
                (Some(listener), _) => Some(listener.accept(&lane.qp, &self.path, CONNECT_MAX)?),
                (None, true) => {
                    let to = SocketAddr::new(ip, PORT);
                    Some(self.session.device.connect(&lane.qp, to, &self.path, CONNECT_MAX)?)
                }
                (None, false) => {
                    let psn = |server| psn(seed, lane.number, server);
                    let peer = Endpoint { ip, qpn: Qpn::new(qpn as u32), psn: psn(!self.server) };
                    lane.qp.connect(psn(self.server), &peer, &self.path)?;
                    None
                }
            };
            round.connections.extend(connection);
        }
        self.session.other.agree("connected")?;
        let address = theirs["address"].as_u64().ok_or("no address")?;
        let rkey = RKey(theirs["rkey"].as_u64().ok_or("no rkey")? as u32);
        let remote = Remote { address, rkey };
        round
            .lanes
            .iter_mut()
            .try_for_each(|lane| lane.begin(remote, &self.session.pd, &self.region))
    }

    /// Works until every lane is done, or until `end` if the round is to be abandoned.
    fn work(&mut self, round: &mut Round, end: Option<Instant>) -> Result<(), Fault> {
        let mut heard = Instant::now();
        let mut found: Vec<Completion> = Vec::new();
        while round.lanes.iter().any(|lane| !lane.is_done()) {
            let now = Instant::now();
            if end.is_some_and(|end| now > end) {
                return Ok(());
            }
            self.loose.iter_mut().try_for_each(|loose| loose.send(now))?;
            found.clear();
            self.cq.poll(64, |completion| found.push(completion))?;
            let mut is_heard = false;
            for completion in &found {
                is_heard |= self.take(round, completion)?;
            }
            if is_heard {
                heard = now;
            } else if heard.elapsed() > SILENCE_MAX {
                let missing = round.lanes.iter().filter(|lane| !lane.is_done()).take(4);
                let missing: Vec<String> = missing.map(Lane::describe).collect();
                return Err(
                    format!("no completion for {SILENCE_MAX:?}:\n{}", missing.join("\n")).into()
                );
            }
        }
        Ok(())
    }

    /// Processes a completion. Returns `true` if it is a lane's: the others complete whatever the
    /// network does.
    fn take(&mut self, round: &mut Round, completion: &Completion) -> Result<bool, Fault> {
        if let Some(&lane) = round.by_qpn.get(&completion.qpn) {
            round.lanes[lane].take(completion, &self.session.pd, &self.region)?;
            return Ok(true);
        }
        let mut loose = self.loose.iter_mut().filter(|loose| loose.qp.qpn() == completion.qpn);
        loose.try_for_each(|loose| loose.take(completion)).map(|()| false)
    }

    /// Checks this side's words against the other side's atomics.
    fn check_words(&mut self, round: &Round) -> Result<(), Fault> {
        let theirs: Vec<u64> = round.lanes.iter().map(|lane| lane.peer_word).collect();
        let ours = numbers(&self.session.other.swap(&json!(theirs))?)?;
        for (lane, expected) in round.lanes.iter().zip(ours) {
            let found = lane.word(&self.region);
            if found != expected {
                return Err(format!(
                    "{}: the word is {found:x}, not {expected:x}",
                    lane.describe()
                )
                .into());
            }
        }
        Ok(())
    }

    /// Disconnects, or resets queue pairs for the next round.
    fn end(&mut self, round: Round, is_given_up: bool) -> Result<(), Fault> {
        if self.args.cm && !is_given_up {
            for connection in &round.connections {
                if self.server {
                    connection.wait_for_end(CONNECT_MAX)?;
                } else {
                    connection.disconnect(CONNECT_MAX)?;
                }
            }
        }
        self.session.other.agree("ended")?;
        if !self.args.cm {
            for lane in round.lanes.into_iter().rev() {
                lane.qp.modify(&QpAttr::to(QpState::Reset))?;
                self.spare.push(lane.qp);
            }
        }
        Ok(())
    }
}

/// First PSN of a side in a lane.
fn psn(seed: u64, lane: usize, server: bool) -> Psn {
    let drawn = SplitMix64::new(seed ^ (lane as u64) << 8 ^ u64::from(server)).next_u64();
    Psn::new(drawn as u32 & 0xff_ffff)
}

fn numbers(list: &Value) -> Result<Vec<u64>, Fault> {
    let items = list.as_array().ok_or("no list")?.iter();
    items.map(|item| item.as_u64().ok_or_else(|| "no number".into())).collect()
}
