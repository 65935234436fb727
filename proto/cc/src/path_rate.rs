//! The rate of one sender over a path whose bottleneck it does not know and may share.
//!
//! **What it seeks.** The rate at which sending more no longer brings more across. It sends at a
//! level for about a round trip, then at another a few per cent higher or lower, at random, and
//! compares: where what arrives follows what is sent, the path has room (*gain* 1); where it does
//! not follow at all, the path is full of its own frames (gain 0); and where others fill it too,
//! sending more takes from them, so that the gain is the part of the bottleneck that is theirs.
//! Each round trip changes what may be under way by `GROWTH` times the gain's cube, less a *price*:
//! the delay of the queue in round trips, marked frames, and loss beyond what the path loses
//! anyway. What may be under way, by the round trip, is the rate.
//!
//! **What follows.** Alone it ends at a full path with next to no queue. Several see the same price
//! and grow by what the others have, so that the smaller grows faster, until shares are equal, also
//! where round trips differ by a factor of two. The cube lets a small share grow fast without a
//! long queue between equals; the queue is bounded by `GROWTH / PRICE`, however many they are. Loss
//! that has nothing to do with the rate costs nothing: what arrives still follows what is sent. Nor
//! does a shallow queue mislead: what it drops does not arrive, and there is no gain.
//!
//! **Beside those who fill any queue** (TCP's CUBIC) a price on delay would leave nothing. A queue
//! that stays although it is paid for is somebody else's: then the price no longer depends on it,
//! and a part of the bottleneck is held, by the gain alone. It is a quarter to a sixth beside one
//! CUBIC. BBR's first version, which keeps two round trips under way whatever is lost, leaves less
//! where the queue is shorter than that; so it does to CUBIC.
//!
//! **The least round trip** is that of the last windows of some seconds. At the end of each the
//! sender stays below the bottleneck for two levels, so that it sees the path without its queue;
//! all do so together after a surge of the queue that all have seen, as at the start of another.
//! One that comes late and took the others' queue for the path would otherwise take more than its
//! share.
//!
//! **Kin.** Micro-experiments are those of PCC Vivace (Dong et al., NSDI 2018), which climbs a
//! utility; the price of delay is that of FAST (Wei et al., 2006); delivery is measured between
//! what was sent first and last as in BBR (draft-cheng-iccrg-delivery-rate-estimation). Why not BBR
//! itself: its rate is the greatest of late, so that two of them keep a queue of a round trip
//! unless the path marks or drops, and a queue of a tenth is the goal here.
//!
//! It keeps no clock and no frames: the owner tells running totals with each acknowledgement, asks
//! for the rate, and paces itself.

use longhaul_units::{BitRate, Duration, Instant, Rng, SplitMix64};

/// Growth of what may be under way, for each level, at a gain of 1 and without a price.
const GROWTH: f64 = 0.13;
/// What a queue of a round trip costs of it, for each level.
const PRICE: f64 = 0.45;
/// The most that the queue costs.
const PRICE_MAX: f64 = 0.12;
/// What it costs if all frames are marked.
const PRICE_MARKED: f64 = 0.08;
/// Levels after that before they cost again: what they ask for shows only then.
const MARKED_WAIT: u32 = 2;
/// Levels in a row with nothing against it after which it grows faster from level to level, and the
/// most.
const FREE_LEVELS: u32 = 4;
const GROWTH_FASTER: f64 = 1.3;
const GROWTH_MAX: f64 = 0.2;
/// Round trips that a longer level counts as, for growth and for the price, at most.
const RTTS_MAX: f64 = 4.0;
const PRICED_RTTS_MAX: f64 = 2.0;
/// A level is so much above or below what may be under way.
const STEP: f64 = 0.025;
/// Frames of a level, at least: fewer do not tell a step from chance.
const LEVEL_FRAMES: u64 = 64;
/// Round trips that a level lasts at most, where fewer frames are sent.
const LEVEL_RTTS_MAX: u64 = 8;
/// What a comparison still counts after the next one.
const MEMORY: f64 = 0.94;
/// How far from 0.5 one comparison's gain is believed; beside those whose rate swings it must not
/// be cut off on one side.
const REACH: f64 = 1.0;
const REACH_FOREIGN: f64 = 2.5;
/// Queue, in round trips, that several senders of this kind never keep; and round trips after which
/// it is somebody else's.
const FOREIGN_QUEUE: f64 = 0.16;
const FOREIGN_RTTS: f64 = 10.0;
/// Beside those: growth, and the gain at which there is none. What is held is the rest of it.
const GROWTH_FOREIGN: f64 = 0.15;
const GAIN_FOREIGN: f64 = 0.55;
/// Beyond this gain the share is so small that loss is the others'.
const GAIN_SMALL: f64 = 0.8;
/// Delay that is not a queue, in a path however short: what clocks and threads add.
const DELAY_FLOOR: Duration = Duration::from_us(200);
/// Queue, in round trips, that is a surge, and levels between two that are heeded.
const SURGE: f64 = 0.3;
const SURGES_APART: u32 = 48;
/// Round trips of which the least tells the queue: fewer may all be late by chance.
const LATELY_SAMPLES: u32 = 4;
/// Queue, in round trips, that ends the start.
const START_QUEUE: f64 = 0.125;
/// Round trips in a row that show it.
const START_SAMPLES: u32 = 3;
/// Part of what is sent that must arrive for the start to go on.
const START_ARRIVES: f64 = 0.7;
/// Windows of the least round trip: least length, and in round trips.
const WINDOW: Duration = Duration::from_ms(4000);
const WINDOW_RTTS: u64 = 40;
/// What may be under way, in bytes: least, at the start, most.
const UNDER_WAY_MIN: f64 = 16_384.0;
const UNDER_WAY_START: f64 = 65_536.0;
const UNDER_WAY_MAX: f64 = 1e12;

/// What the sender knows at an acknowledgement: running totals since the path began, and what is
/// under way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Heard {
    /// Number of the next frame to be sent: frames sent so far.
    pub next: u64,
    /// The least number behind all that arrived.
    pub arrived_to: u64,
    /// Frames that arrived.
    pub arrived: u64,
    /// Frames taken for lost.
    pub lost: u64,
    /// Frames that arrived with a congestion mark.
    pub marked: u64,
    /// Bytes on the wire of all frames sent, parity and control included.
    pub sent_bytes: u64,
    /// Bytes on the wire of frames that arrived.
    pub arrived_bytes: u64,
    /// Round trip of the newest frame that arrived, without the far end's wait. Zero: none was
    /// measured.
    pub rtt: Duration,
}

/// What holds a path's sender back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RateLimitedBy {
    /// Nothing yet: it looks for the bottleneck.
    Start,
    /// It has less to send.
    Sender,
    /// The bottleneck.
    Path,
    /// Frames are marked.
    Marks,
    /// More is lost than at lower rates.
    Loss,
    /// A queue that others keep.
    Others,
    /// The configuration.
    Most,
}

impl RateLimitedBy {
    /// A word for it.
    pub const fn name(self) -> &'static str {
        match self {
            RateLimitedBy::Start => "start",
            RateLimitedBy::Sender => "sender",
            RateLimitedBy::Path => "path",
            RateLimitedBy::Marks => "marks",
            RateLimitedBy::Loss => "loss",
            RateLimitedBy::Others => "others",
            RateLimitedBy::Most => "most",
        }
    }
}

/// A point in the running totals.
#[derive(Clone, Copy, Debug)]
struct Point {
    at: Instant,
    heard: Heard,
}

impl Point {
    /// Bytes per second between this and a later point, of one total. `None`: no time has passed.
    fn rate_to(&self, later: &Point, total: fn(&Heard) -> u64) -> Option<f64> {
        let seconds = later.at.since(self.at).as_secs_f64();
        let bytes = total(&later.heard).saturating_sub(total(&self.heard));
        (seconds > 0.0).then(|| bytes as f64 / seconds)
    }
}

/// Rates of a level in bytes per second: sent, and arrived of that.
#[derive(Clone, Copy, Debug)]
struct Measured {
    sent: f64,
    arrived: f64,
    /// Frames that arrived.
    frames: u64,
}

impl Measured {
    /// So much less arrived than was sent that it is not by chance.
    fn falls_short(&self) -> bool {
        self.frames >= LEVEL_FRAMES / 2 && self.arrived < START_ARRIVES * self.sent
    }
}

/// Least round trip of the window before and of this one.
#[derive(Clone, Copy, Debug)]
struct LeastRtt {
    before: Duration,
    this: Option<Duration>,
    samples: u32,
    ends: Instant,
}

impl LeastRtt {
    fn get(&self) -> Duration {
        self.this.map_or(self.before, |this| this.min(self.before))
    }

    fn note(&mut self, rtt: Duration) {
        self.this = Some(self.this.map_or(rtt, |this| this.min(rtt)));
        self.samples = self.samples.saturating_add(1);
    }

    /// Begins another window, of this length. One in which nothing was measured goes on.
    fn turn(&mut self, now: Instant, window: Duration) {
        if let Some(this) = self.this.take() {
            self.before = this;
        }
        self.samples = 0;
        self.ends = now + window;
    }
}

/// How much of what is sent more arrives: a regression through 0 that forgets.
#[derive(Clone, Copy, Debug)]
struct Gain {
    products: f64,
    squares: f64,
}

impl Gain {
    /// One that is taken for `gain`, and soon learns better.
    fn of(gain: f64) -> Self {
        let squares = STEP * STEP;
        Gain { products: gain * squares, squares }
    }

    /// What is sent has changed by the part `sent`, what arrives by `arrived`. One gain is taken
    /// for at most `reach` from 0.5.
    fn note(&mut self, sent: f64, arrived: f64, reach: f64) {
        let times =
            if sent.abs() < 1e-6 { 0.0 } else { (arrived / sent).clamp(0.5 - reach, 0.5 + reach) };
        // A great change says no more than two steps do.
        let weight = sent.abs().min(2.0 * STEP).powi(2);
        self.squares = MEMORY * self.squares + weight;
        self.products = MEMORY * self.products + weight * times;
    }

    /// 0 to 1.
    fn get(&self) -> f64 {
        if self.squares < 1e-12 { 0.5 } else { (self.products / self.squares).clamp(0.0, 1.0) }
    }
}

/// The controller; see the module.
#[derive(Clone, Debug)]
pub struct PathRate {
    rng: SplitMix64,
    most: Option<BitRate>,
    /// Bytes that may be under way, and the same with the step of this level.
    under_way: f64,
    level: f64,
    is_starting: bool,
    rtt_least: Option<LeastRtt>,
    /// Smoothed over some eight samples.
    rtt: Duration,
    /// Least of the last quarter of a round trip, or two.
    rtt_lately: Option<LeastRtt>,
    /// When this level began, when its first frame arrived, and the same of the level before.
    began: Option<Point>,
    heard_first: Option<Point>,
    /// What was sent of the level whose arrival is awaited, and when its first arrived.
    awaited: Option<(f64, Point)>,
    measured: Option<Measured>,
    gain: Gain,
    growth: f64,
    /// Levels in a row with nothing against more.
    free: u32,
    /// Round trips in a row that show a queue at the start.
    start_queued: u32,
    /// Queue, in round trips, of the last level.
    queue: f64,
    queue_delay: Duration,
    /// Round trips in a row with a queue that senders of this kind do not keep.
    foreign: f64,
    /// Levels for which marks cost nothing more.
    marked_wait: u32,
    /// Least loss of the level groups before and now, and levels left of this one.
    loss_least: (f64, f64),
    loss_levels: u32,
    /// Levels below the bottleneck that are left, and how far below.
    drain: u32,
    drain_to: f64,
    /// Levels since then.
    since_drain: u32,
    has_surged: bool,
    limited_by: RateLimitedBy,
}

impl PathRate {
    /// A controller that has measured nothing. Senders that share a bottleneck need different
    /// seeds. It never exceeds `most`.
    pub fn new(seed: u64, most: Option<BitRate>) -> Self {
        PathRate {
            rng: SplitMix64::new(seed),
            most,
            under_way: UNDER_WAY_START,
            level: UNDER_WAY_START,
            is_starting: true,
            rtt_least: None,
            rtt: Duration::ZERO,
            rtt_lately: None,
            began: None,
            heard_first: None,
            awaited: None,
            measured: None,
            gain: Gain::of(0.5),
            growth: GROWTH,
            free: 0,
            start_queued: 0,
            queue: 0.0,
            queue_delay: Duration::ZERO,
            foreign: 0.0,
            marked_wait: 0,
            loss_least: (1.0, 1.0),
            loss_levels: 0,
            drain: 0,
            drain_to: 1.0,
            since_drain: 0,
            has_surged: false,
            limited_by: RateLimitedBy::Start,
        }
    }

    /// A round trip that was measured otherwise than by what is told to [`PathRate::hear`], as
    /// while nothing was sent yet.
    pub fn note_rtt(&mut self, now: Instant, rtt: Duration) {
        if rtt == Duration::ZERO {
            return;
        }
        let first = LeastRtt { before: rtt, this: None, samples: 0, ends: now };
        self.rtt_least.get_or_insert(LeastRtt { ends: now + WINDOW, ..first }).note(rtt);
        let lately = self.rtt_lately.get_or_insert(first);
        if now >= lately.ends && lately.samples >= LATELY_SAMPLES {
            lately.turn(now, self.rtt.divided_by(4));
        }
        lately.note(rtt);
        self.rtt = if self.rtt == Duration::ZERO {
            rtt
        } else {
            self.rtt.divided_by(8).times(7) + rtt.divided_by(8)
        };
    }

    /// What an acknowledgement says.
    pub fn hear(&mut self, now: Instant, heard: &Heard) {
        self.note_rtt(now, heard.rtt);
        if self.rtt == Duration::ZERO {
            return;
        }
        let point = Point { at: now, heard: *heard };
        let Some(began) = self.began else {
            self.began = Some(point);
            return;
        };
        if self.heard_first.is_none() && heard.arrived_to > began.heard.next {
            self.heard_first = Some(point);
            self.compare(&point);
        }
        if self.is_starting && heard.rtt > Duration::ZERO {
            self.look_at_start(&point);
        }
        let frames = heard.next.saturating_sub(began.heard.next);
        let is_long = frames >= LEVEL_FRAMES
            || self.is_starting && frames > 0
            || now.since(began.at) > self.rtt.times(LEVEL_RTTS_MAX);
        if let Some(first) = self.heard_first
            && is_long
        {
            self.end_level(&began, first, &point);
        }
    }

    /// All of a level has arrived: how it did, and against the one before.
    fn compare(&mut self, first_of_next: &Point) {
        let Some((sent, first)) = self.awaited.take() else { return };
        let Some(arrived) = first.rate_to(first_of_next, |heard| heard.arrived_bytes) else {
            return;
        };
        let frames = first_of_next.heard.arrived.saturating_sub(first.heard.arrived);
        let this = Measured { sent, arrived, frames };
        let Some(before) = self.measured.replace(this) else { return };
        let reach = if self.is_foreign() { REACH_FOREIGN } else { REACH };
        let change = |before: f64, this: f64| 2.0 * (this - before) / (this + before).max(1.0);
        self.gain.note(change(before.sent, this.sent), change(before.arrived, this.arrived), reach);
    }

    /// The start ends as soon as there is a queue, or less arrives than is sent.
    fn look_at_start(&mut self, point: &Point) {
        let stays = !self.measured.is_some_and(|measured| measured.falls_short());
        let is_queued = self.queue_of(point.heard.rtt) > START_QUEUE;
        self.start_queued = if is_queued { self.start_queued + 1 } else { 0 };
        if stays && self.start_queued < START_SAMPLES && !self.loses_at_start(point) {
            return;
        }
        let least = self.rtt_least().as_secs_f64();
        let lately =
            self.heard_first.filter(|first| point.at.since(first.at) > self.rtt.divided_by(8));
        let lately = lately.and_then(|first| first.rate_to(point, |heard| heard.arrived_bytes));
        let arrived =
            lately.unwrap_or(0.0).max(self.measured.map_or(0.0, |measured| measured.arrived));
        if arrived > 0.0 {
            self.under_way = bound(arrived * least).min(self.under_way);
            self.level = self.under_way * (1.0 - 2.0 * STEP);
        }
        self.is_starting = false;
        self.gain = Gain::of(0.3);
        self.has_surged = true;
        self.since_drain = SURGES_APART;
    }

    /// More is lost of what arrives of this level than can be by chance.
    fn loses_at_start(&self, point: &Point) -> bool {
        let Some(first) = self.heard_first else { return false };
        let lost = point.heard.lost.saturating_sub(first.heard.lost);
        let arrived = point.heard.arrived.saturating_sub(first.heard.arrived);
        lost > LEVEL_FRAMES / 4
            && lost as f64 > (1.0 - START_ARRIVES) * lost.saturating_add(arrived) as f64
    }

    fn end_level(&mut self, began: &Point, first: Point, point: &Point) {
        let Some(sent) = began.rate_to(point, |heard| heard.sent_bytes) else { return };
        let asked = self.bytes_per_s();
        let rtt = self.rtt_lately.map_or(self.rtt, |lately| lately.get());
        self.queue = self.queue_of(rtt);
        self.queue_delay = rtt - self.rtt_least();
        self.adjust(began, point, sent > 0.85 * asked);
        self.turn_window(point.at);
        self.heed_surge();
        let sign = if self.rng.chance(0.5) { STEP } else { -STEP };
        self.level = if self.drain > 0 {
            self.drain -= 1;
            self.under_way * self.drain_to
        } else if self.is_starting {
            self.under_way
        } else {
            self.under_way * (1.0 + sign)
        };
        self.awaited = Some((sent, first));
        self.began = Some(*point);
        self.heard_first = None;
    }

    /// What may be under way from here on.
    fn adjust(&mut self, began: &Point, point: &Point, is_used: bool) {
        let (before, heard) = (&began.heard, &point.heard);
        let arrived = heard.arrived.saturating_sub(before.arrived).max(1) as f64;
        let lost = heard.lost.saturating_sub(before.lost) as f64;
        let marked = (heard.marked.saturating_sub(before.marked) as f64 / arrived).min(1.0);
        let rtts = point.at.since(began.at).as_secs_f64() / self.rtt.as_secs_f64().max(1e-9);
        let rtts = rtts.clamp(0.5, RTTS_MAX);
        let excess = self.excess_loss(lost / (lost + arrived));
        if self.is_starting {
            if marked > 0.2 {
                self.is_starting = false;
                self.under_way = bound(self.under_way / 2.0);
                self.gain = Gain::of(0.3);
            } else if is_used {
                self.under_way = bound(self.under_way * 2.0);
            }
            self.limited_by = if is_used { RateLimitedBy::Start } else { RateLimitedBy::Sender };
            return self.heed_most();
        }
        self.foreign = if self.queue > FOREIGN_QUEUE { self.foreign + rtts } else { 0.0 };
        let is_foreign = self.is_foreign();
        let gain = self.gain.get();
        let queue_price = (PRICE * self.queue).min(PRICE_MAX);
        let marked_price = self.marked_price(marked);
        let price = queue_price + marked_price + excess;
        let is_free = gain > 0.7 && price < GROWTH / 4.0;
        self.free = if is_free && is_used { self.free.saturating_add(1) } else { 0 };
        self.growth = if self.free > FREE_LEVELS {
            (self.growth * GROWTH_FASTER).min(GROWTH_MAX)
        } else {
            GROWTH
        };
        let change = if is_foreign {
            GROWTH_FOREIGN * (gain - GAIN_FOREIGN) * rtts
                - if gain < GAIN_SMALL { excess } else { 0.0 }
        } else {
            (self.growth * gain.powi(3) * rtts).min(GROWTH_MAX) - price * rtts.min(PRICED_RTTS_MAX)
        };
        if change < 0.0 || is_used {
            self.under_way = bound(self.under_way * (1.0 + change));
        }
        self.limited_by = match () {
            () if !is_used => RateLimitedBy::Sender,
            () if is_foreign => RateLimitedBy::Others,
            () if marked_price > queue_price => RateLimitedBy::Marks,
            () if excess > queue_price => RateLimitedBy::Loss,
            () => RateLimitedBy::Path,
        };
        self.heed_most();
    }

    /// The queue is somebody else's.
    fn is_foreign(&self) -> bool {
        self.foreign > FOREIGN_RTTS
    }

    fn marked_price(&mut self, marked: f64) -> f64 {
        if self.marked_wait > 0 {
            self.marked_wait -= 1;
            return 0.0;
        }
        self.marked_wait = if marked > 0.0 { MARKED_WAIT } else { 0 };
        PRICE_MARKED * marked
    }

    /// The price of loss, 0 to 0.1: half of what is lost beyond twice the least of late and a
    /// hundredth.
    fn excess_loss(&mut self, loss: f64) -> f64 {
        if self.loss_levels == 0 {
            self.loss_least = (self.loss_least.1, loss);
            self.loss_levels = 16;
        }
        self.loss_levels -= 1;
        self.loss_least.1 = self.loss_least.1.min(loss);
        let least = self.loss_least.0.min(self.loss_least.1);
        (0.5 * (loss - 2.0 * least - 0.01)).clamp(0.0, 0.1)
    }

    fn heed_most(&mut self) {
        let Some(most) = self.most else { return };
        let under_way = most.as_bps() as f64 / 8.0 * self.rtt.as_secs_f64() * (1.0 + STEP);
        if self.under_way > under_way {
            self.under_way = bound(under_way);
            self.limited_by = RateLimitedBy::Most;
        }
    }

    /// Another window of the least round trip, which begins with a look at the path without this
    /// sender's queue.
    fn turn_window(&mut self, now: Instant) {
        let Some(least) = &mut self.rtt_least else { return };
        if now < least.ends || self.is_starting {
            return;
        }
        least.turn(now, WINDOW.max(self.rtt.times(WINDOW_RTTS)));
        self.go_below();
    }

    /// Two levels without a queue of its own.
    fn go_below(&mut self) {
        let own = (1.0 - self.gain.get()).max(0.2);
        self.drain = 2;
        self.drain_to = (1.0 - 1.5 * self.queue / own - 2.0 * STEP).max(0.5);
        self.since_drain = 0;
        self.has_surged = false;
    }

    /// A queue that came and went, as with the start of another sender, is one that all have seen:
    /// if they go below the bottleneck together now, they see it empty.
    fn heed_surge(&mut self) {
        self.since_drain = self.since_drain.saturating_add(1);
        self.has_surged |= self.queue > SURGE;
        if self.has_surged && self.queue < SURGE / 2.0 && self.since_drain > SURGES_APART {
            self.go_below();
        }
    }

    /// The queue that a round trip shows, in round trips.
    fn queue_of(&self, rtt: Duration) -> f64 {
        let least = self.rtt_least();
        let queue = if rtt > least { rtt - least } else { Duration::ZERO };
        queue.as_secs_f64() / (least + DELAY_FLOOR).as_secs_f64()
    }

    fn bytes_per_s(&self) -> f64 {
        let rtt = if self.rtt == Duration::ZERO { Duration::from_ms(100) } else { self.rtt };
        let rate = self.level / rtt.as_secs_f64().max(1e-6);
        self.most.map_or(rate, |most| rate.min(most.as_bps() as f64 / 8.0))
    }

    /// The rate to pace to, in bits on the wire per second.
    pub fn rate(&self) -> BitRate {
        let bps = (self.bytes_per_s() * 8.0).clamp(1e3, 1e15) as u64;
        BitRate::from_bps(bps).unwrap_or(BitRate::from_bps(1000).expect("not zero"))
    }

    /// Bytes on the wire that may be under way, for when acknowledgements fail to come: half as
    /// much again as the rate needs.
    pub fn in_flight_max(&self) -> u64 {
        (1.5 * self.level) as u64 + 128 * 1024
    }

    /// What the path carries of it as last measured, in bits on the wire per second. `None`:
    /// nothing was measured.
    pub fn delivered(&self) -> Option<BitRate> {
        self.measured
            .and_then(|measured| BitRate::from_bps((measured.arrived * 8.0).min(1e15) as u64))
    }

    /// Least round trip of the last windows; zero before any was measured.
    pub fn rtt_least(&self) -> Duration {
        self.rtt_least.map_or(Duration::ZERO, |least| least.get())
    }

    /// Delay of the bottleneck's queue, over the last level.
    pub fn queue_delay(&self) -> Duration {
        self.queue_delay
    }

    /// Part of what is sent more that arrives, 0 to 1.
    pub fn gain(&self) -> f64 {
        self.gain.get()
    }

    /// What holds it back.
    pub fn limited_by(&self) -> RateLimitedBy {
        self.limited_by
    }
}

fn bound(bytes: f64) -> f64 {
    if bytes.is_finite() { bytes.clamp(UNDER_WAY_MIN, UNDER_WAY_MAX) } else { UNDER_WAY_MIN }
}
