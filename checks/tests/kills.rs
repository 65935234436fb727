//! Both boxes of a pair are killed and restarted at random moments, in real time and in every mode,
//! under traffic of which `integrity kills` checks every byte, completion, immediate and atomic.
//! What may be lost and may fail is judged as in virtual time (`longhaul_accel::promise`). Skipped,
//! loudly, if namespaces cannot be created.

use longhaul_accel::Mode;
use longhaul_accel::promise::{FirstFailure, Lost, Seen};
use longhaul_checks::network::{LEFT, LIMIT, Namespace, Network, RIGHT, RunningBox};
use longhaul_checks::{Program, free_tcp_port, from_environment};
use longhaul_units::{Rng, SplitMix64};
use serde_json::Value;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The server's address on a path without boxes.
const ASIDE: &str = "10.96.0.2";
/// Before each kill of a connection's one or two, and until the restart. The NICs' retries, of
/// eight seconds, outlast both.
const ALIVE_MS_MAX: u64 = 600;
const AWAY_MS_MAX: u64 = 400;
const LOOK_AGAIN: Duration = Duration::from_millis(2);
/// A box loses its memory at some time before its end was noticed.
const NOTICED_MS: u64 = 50;

/// The end of a box, and its time.
struct Kill {
    number: usize,
    at: u64,
}

fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("a date");
    since.as_millis() as u64
}

/// What was counted in a trial.
#[derive(Clone, Copy, Default)]
struct Account {
    connections: u64,
    completed: u64,
    bytes: u64,
    kills: [u64; 2],
    /// Connections that broke as the table permits.
    broken: u64,
    /// Messages that completed and are missing, as the table permits.
    lost: u64,
}

impl Account {
    fn add(&mut self, other: Account) {
        self.connections += other.connections;
        self.completed += other.completed;
        self.bytes += other.bytes;
        self.broken += other.broken;
        self.lost += other.lost;
        for (sum, kills) in self.kills.iter_mut().zip(other.kills) {
            *sum += kills;
        }
    }
}

impl fmt::Display for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Account { connections, completed, bytes, kills, broken, lost } = self;
        write!(
            f,
            "{connections} connections, {completed} operations, {bytes} bytes, {} and {} kills; \
             permitted: {broken} broken connections, {lost} lost messages; not permitted: 0",
            kills[0], kills[1]
        )
    }
}

/// Two boxes and their hosts.
struct Trial<'a> {
    network: &'a Network,
    mode: Mode,
    seed: u64,
    seconds: f64,
}

impl Trial<'_> {
    fn start(&self, number: usize) -> RunningBox {
        let (name, lan, wan) = [("near", "west", "w1"), ("far", "east", "e1")][number];
        self.network.start(&format!(
            "accelerate --name {name} --lan {lan} --wan {wan} --transport --mode {}",
            self.mode
        ))
    }

    /// Where the programs say what they do.
    fn dir(&self) -> PathBuf {
        self.network.runtime.path().join(format!("{}-{}", self.mode, self.seed))
    }

    fn program(&self, host: &Namespace, ip: &str, place: &str) -> Program {
        let mut command = host.longhaul(&self.network.runtime, &format!("exec --udp={ip} --"));
        command.arg(env!("CARGO_BIN_EXE_integrity")).args(place.split_whitespace());
        let Trial { seed, seconds, .. } = self;
        let dir = self.dir();
        std::fs::create_dir_all(&dir).expect("a directory");
        command.args(["kills", "--seed", &seed.to_string(), "--seconds", &seconds.to_string()]);
        Program::start(command.arg("--dir").arg(dir))
    }

    fn run(&self) -> Result<Account, String> {
        // Long enough for boxes to hold what they have acknowledged.
        let fibre = self.network.start("emulate --a w2 --b e2 --distance 2000km --rate 1G");
        let mut boxes = [0, 1].map(|number| Some(self.start(number)));
        let meet = format!("--meet {ASIDE} --port {}", free_tcp_port());
        let server = self.program(&self.network.right, RIGHT, &format!("--server {meet}"));
        let mut client = self.program(&self.network.left, LEFT, &meet);
        let mut rng = SplitMix64::new(self.seed ^ 0x6b69_6c6c);
        let mut kills = Vec::new();
        let deadline = Instant::now() + Duration::from_secs_f64(self.seconds) + LIMIT;
        for life in 0.. {
            let begun = self.dir().join(format!("life-{life}"));
            while client.is_running() && !begun.exists() && Instant::now() < deadline {
                sleep(LOOK_AGAIN);
            }
            if !begun.exists() {
                break;
            }
            for _ in 0..1 + rng.below(2) {
                sleep(Duration::from_millis(rng.below(ALIVE_MS_MAX)));
                let number = rng.below(2) as usize;
                let one = boxes[number].take().expect("a box");
                kills.push(Kill { number, at: unix_ms() });
                one.signal(libc::SIGKILL);
                one.program.finish(LIMIT);
                sleep(Duration::from_millis(rng.below(AWAY_MS_MAX)));
                boxes[number] = Some(self.start(number));
            }
        }
        let ends = [client.finish(LIMIT), server.finish(LIMIT)];
        if ends.iter().any(|end| !end.status.success()) {
            return Err(format!("=== client\n{}\n=== server\n{}", ends[0], ends[1]));
        }
        boxes.into_iter().flatten().chain([fibre]).for_each(|one| drop(one.end()));
        let told = ends.map(|end| serde_json::from_str::<Value>(&end.stdout).expect("JSON"));
        self.judge(&told, &kills)
    }

    /// Compares what both ends saw with the promises of the mode.
    fn judge(&self, told: &[Value; 2], kills: &[Kill]) -> Result<Account, String> {
        let lives = |end: usize| told[end]["lives"].as_array().expect("lives");
        assert_eq!(lives(0).len(), lives(1).len());
        let mut account = Account::default();
        for kill in kills {
            account.kills[kill.number] += 1;
        }
        let mut wrong = Vec::new();
        for (number, both) in lives(0).iter().zip(lives(1)).enumerate() {
            let both = <[&Value; 2]>::from(both);
            account.connections += 1;
            account.broken += u64::from(both.iter().any(|life| !life["failure"].is_null()));
            for requester in 0..2 {
                let seen = seen(both, requester);
                account.completed += seen.completed as u64;
                account.bytes += both[requester]["bytes"].as_u64().expect("bytes");
                account.lost += seen.completed.saturating_sub(seen.placed) as u64;
                let lost = lost(both, requester, kills);
                if let Err(broken) = seen.judge(self.mode, lost) {
                    wrong.push(format!(
                        "connection {number}, requester {requester}, {lost:?}: {broken}: {both:?}; \
                         kills: {:?}",
                        during(both, kills)
                    ));
                }
            }
        }
        if wrong.is_empty() { Ok(account) } else { Err(wrong.join("\n")) }
    }
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("a number: {value}"))
}

/// One direction of a connection.
fn seen(both: [&Value; 2], requester: usize) -> Seen {
    let count = |name: &str| number(&both[requester][name]) as usize;
    let is_remote = |life: &Value| life["failure"]["status"] == "RemoteOperation";
    // Failures of the other end follow from the first.
    let key = |end: usize| {
        let at = both[end]["failure"]["at"].as_u64();
        at.map(|at| (at, !is_remote(both[end])))
    };
    let first = (0..2).filter_map(|end| key(end).map(|key| (key, end))).min();
    let failure = first.filter(|(_, end)| *end == requester).map(|_| {
        let failure = &both[requester]["failure"];
        FirstFailure {
            is_long: failure["is_long"] == true,
            has_arrived: failure["has_arrived"] == true,
            is_remote_operation: is_remote(both[requester]),
        }
    });
    Seen {
        messages: count("messages"),
        completed: count("completed"),
        placed: count("placed"),
        fence: both[requester]["fence"].as_u64().map(|fence| fence as usize),
        is_broken: first.is_some(),
        failure,
    }
}

/// Boxes and times of kills around a connection.
fn during(both: [&Value; 2], kills: &[Kill]) -> Vec<(usize, u64)> {
    let times = number(&both[0]["begun"])..number(&both[0]["ended"]);
    kills
        .iter()
        .filter(|kill| times.contains(&kill.at))
        .map(|kill| (kill.number, kill.at))
        .collect()
}

/// Boxes that were killed while a connection lived.
fn lost(both: [&Value; 2], requester: usize, kills: &[Kill]) -> Lost {
    let begun = both.map(|life| number(&life["begun"])).into_iter().min().expect("two");
    let ended = both.map(|life| number(&life["ended"])).into_iter().max().expect("two");
    let was_killed = |number: usize| {
        let mut of_it = kills.iter().filter(|kill| kill.number == number);
        of_it.any(|kill| (begun..=ended).contains(&kill.at) || begun.abs_diff(kill.at) < NOTICED_MS)
    };
    Lost { near: was_killed(requester), far: was_killed(1 - requester) }
}

fn network() -> Option<Network> {
    let network = Network::new("boxes that are killed", 1500)?;
    for cable in ["w1", "w2", "e1", "e2"] {
        network.middle.set(&format!("link set {cable} mtu 1600"));
    }
    network.left.set("link add alt type veth peer name aside");
    network.left.set(&format!("link set aside netns {}", network.right.name));
    network.left.set("address add 10.96.0.1/24 dev alt");
    network.right.set(&format!("address add {ASIDE}/24 dev aside"));
    network.left.set("link set alt up");
    network.right.set("link set aside up");
    Some(network)
}

fn short(mode: Mode) {
    let Some(network) = network() else { return };
    let trial = Trial { network: &network, mode, seed: 1, seconds: 1.5 };
    let account = trial.run().unwrap_or_else(|fault| panic!("{mode}, seed 1: {fault}"));
    println!("{mode}: {account}");
    assert!(account.completed > 0 && account.kills.iter().sum::<u64>() > 0);
}

#[test]
fn early() {
    short(Mode::Early);
}

#[test]
fn far() {
    short(Mode::Far);
}

#[test]
fn tail() {
    short(Mode::Tail);
}

#[test]
fn off() {
    short(Mode::Off);
}

/// `LONGHAUL_KILLS_SECONDS` sets the duration, `LONGHAUL_SEED` the first seed: a duration of one
/// second runs only the trials of that seed.
#[test]
#[ignore = "nightly: an hour of kills"]
fn an_hour() {
    let limit = Duration::from_secs(from_environment("LONGHAUL_KILLS_SECONDS", 3600));
    let Some(network) = network() else { return };
    let (begun, mut failed) = (Instant::now(), Vec::new());
    let mut accounts = Mode::ALL.map(|mode| (mode, Account::default()));
    for seed in from_environment("LONGHAUL_SEED", 1).. {
        for (mode, account) in &mut accounts {
            let trial = Trial { network: &network, mode: *mode, seed, seconds: 15.0 };
            // A box that does not start fails its trial, and the others continue.
            let outcome = catch_unwind(AssertUnwindSafe(|| trial.run()))
                .unwrap_or_else(|_| Err("panicked".to_owned()));
            match outcome {
                Ok(one) => {
                    println!("{mode}, seed {seed}: {one}");
                    account.add(one);
                }
                Err(fault) => {
                    eprintln!(
                        "{mode}, seed {seed}: {fault}\nto repeat, if the moments are the same: \
                         LONGHAUL_KILLS_SECONDS=1 LONGHAUL_SEED={seed} cargo test -p \
                         longhaul-checks --test kills an_hour -- --ignored"
                    );
                    failed.push((*mode, seed));
                }
            }
        }
        if begun.elapsed() > limit {
            break;
        }
    }
    println!("{:.0} s of kills", begun.elapsed().as_secs_f64());
    for (mode, account) in accounts {
        println!("{mode}: {account}");
    }
    assert!(failed.is_empty(), "promises broken, by mode and seed: {failed:?}");
}
