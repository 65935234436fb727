//! Rate control for one sender on a path with an unknown bottleneck, possibly shared.
//!
//! **Goal.** The controller seeks the rate beyond which sending more does not deliver more. It
//! sends at one level for about a round trip, then at another a few per cent higher or lower, at
//! random, and compares. The *gain* is the share of the additional sending rate that arrives. It is
//! 1 while the path has room, and 0 when this sender's frames alone fill the path. If others fill
//! it too, sending more takes from them, and the gain is their share of the bottleneck. Each round
//! trip changes the in-flight limit by `GROWTH` times the cube of the gain, less a *price*: the
//! queuing delay in round trips, marked frames, and loss beyond the path's own. The rate is the
//! in-flight limit divided by the RTT.
//!
//! **Results.** A lone sender fills the path with next to no queue. Several senders see the same
//! price and grow by the others' share, so the smallest grows fastest until shares are equal, even
//! if RTTs differ by a factor of two. The cube lets a small share grow fast without a long queue
//! between equals. `GROWTH / PRICE` bounds the queue for any number of senders. Loss unrelated to
//! the rate costs nothing, because arrivals still follow the sending rate. A shallow queue does not
//! mislead either: frames that it drops do not arrive, so there is no gain.
//!
//! **Senders that fill any queue** (TCP's CUBIC and BBR) would leave nothing to a sender that pays
//! for delay. A queue that persists although this sender pays for it belongs to others. Beside them
//! the queue has no price, and the controller holds half of the bottleneck. Two signs tell its
//! share: the gain, and the throughput relative to that before the others came. The gain alone
//! errs by chance, because BBR's rate fluctuates more than the steps; the earlier throughput is
//! unknown to a sender that came last, and wrong if the path has become slower. Loss costs a part
//! of the frames lost: TCP that does not answer loss sets its level, so answering all of it would
//! leave nothing.
//!
//! Others are gone when the sender has its earlier throughput again, or no such queue has been seen
//! for several windows: a CUBIC flow needs many round trips to fill the queue after a loss. Several
//! senders of this kind that a slower path misleads would fill the queue together, so after a
//! window with loss each pays for the queue again, and continues only if the queue does not shrink.
//! A queue of many round trips ends the competition.
//!
//! **The minimum RTT** is that of the last windows of a few seconds. At the end of each window the
//! sender stays below the bottleneck for two levels, to see the path without its queue. All senders
//! do so together after a surge of the queue that all have seen, such as another sender's start.
//! Otherwise a late sender would mistake the others' queue for the path, and take more than its
//! share.
//!
//! **Related work.** The micro-experiments are those of PCC Vivace (Dong et al., NSDI 2018), which
//! climbs a utility. The price of delay is that of FAST (Wei et al., 2006). Delivery is measured
//! between the first and last frame sent, as in BBR (draft-cheng-iccrg-delivery-rate-estimation).
//! BBR itself uses the maximum recent delivery rate, so that two BBR senders keep a queue of a
//! round trip unless the path marks or drops; the goal here is a tenth of that.
//!
//! The controller has no clock and handles no frames: the owner passes running totals with each
//! acknowledgement, reads the rate, and paces itself.

mod rivals;

use longhaul_units::{BitRate, Duration, Instant, Rng, SplitMix64};
use rivals::{Level, Queued, Rivals, Throughput, Turn};

/// Growth of the in-flight limit per round trip at a gain of 1 and without a price.
const GROWTH: f64 = 0.13;
/// Price per round trip of a queue of one round trip.
const PRICE: f64 = 0.45;
/// Maximum price of the queue.
const PRICE_MAX: f64 = 0.12;
/// Queue, in round trips, that only a path that became slower or other senders cause, and its
/// maximum price.
const LONG_QUEUE: f64 = 1.0;
const PRICE_LONG: f64 = 0.3;
/// Price if all frames are marked.
const PRICE_MARKED: f64 = 0.08;
/// Levels after a priced mark during which marks are free: the reduction takes effect only then.
const MARKED_WAIT: u32 = 2;
/// Consecutive unimpeded levels after which growth accelerates from level to level, the factor, and
/// the maximum.
const FREE_LEVELS: u32 = 4;
const GROWTH_FASTER: f64 = 1.3;
const GROWTH_MAX: f64 = 0.2;
/// Maximum number of round trips that a longer level counts as, for growth and for the price.
const RTTS_MAX: f64 = 4.0;
const PRICED_RTTS_MAX: f64 = 2.0;
/// Relative distance of a level from the in-flight limit.
const STEP: f64 = 0.025;
/// Minimum frames of a level: fewer do not distinguish a step from chance.
const LEVEL_FRAMES: u64 = 64;
/// Maximum duration of a level in round trips, if fewer frames are sent.
const LEVEL_RTTS_MAX: u64 = 8;
/// Weight of a comparison after the next one.
const MEMORY: f64 = 0.94;
/// Maximum distance from 0.5 of one comparison's gain. Beside senders whose rate fluctuates it must
/// not be cut off on one side.
const REACH: f64 = 1.0;
const REACH_FOREIGN: f64 = 8.0;
/// Beside others: growth per round trip and missing share, step, and price of all frames lost.
const GROWTH_FOREIGN: f64 = 0.15;
const STEP_FOREIGN: f64 = 0.05;
const PRICE_LOST: f64 = 0.3;
/// Windows of the minimum RTT without a queue of others after which they are gone: longer than a
/// CUBIC flow takes to fill the queue again.
const FOREIGN_WINDOWS: u64 = 4;
/// Gain beside others that have more than half: throughput then does not show what the path has.
const GAIN_CROWDED: f64 = 0.5;
/// Gain above which the path has room, or the sender next to nothing.
const GAIN_ROOM: f64 = 0.9;
/// Share held beside others, and weight of the gain as a sign of it if the throughput before others
/// came is known.
const HALF: f64 = 0.5;
const GAIN_WEIGHT: f64 = 0.5;
/// Delay that does not count as a queue on any path: jitter of clocks and threads.
const DELAY_FLOOR: Duration = Duration::from_us(200);
/// Queue, in round trips, that counts as a surge, and the minimum number of levels between two
/// reactions.
const SURGE: f64 = 0.3;
const SURGES_APART: u32 = 48;
/// RTT samples whose minimum shows the queue: fewer may all be late by chance.
const LATELY_SAMPLES: u32 = 4;
/// Queue, in round trips, that ends the start phase.
const START_QUEUE: f64 = 0.125;
/// Consecutive RTT samples that must show it.
const START_SAMPLES: u32 = 3;
/// Share of the sending rate that must arrive for the start phase to continue.
const START_ARRIVES: f64 = 0.7;
/// Window of the minimum RTT: its minimum length, and its length in round trips.
const WINDOW: Duration = Duration::from_ms(4000);
const WINDOW_RTTS: u64 = 40;
/// In-flight limit in bytes: minimum, initial value, maximum.
const UNDER_WAY_MIN: f64 = 16_384.0;
const UNDER_WAY_START: f64 = 65_536.0;
const UNDER_WAY_MAX: f64 = 1e12;

/// Information at an acknowledgement: running totals since the path began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Heard {
    /// Number of the next frame: frames sent so far.
    pub next: u64,
    /// Lowest number above all that arrived.
    pub arrived_to: u64,
    /// Frames that arrived.
    pub arrived: u64,
    /// Frames presumed lost.
    pub lost: u64,
    /// Frames that arrived with a congestion mark.
    pub marked: u64,
    /// Bytes on the wire of all frames sent, including parity and control datagrams.
    pub sent_bytes: u64,
    /// Bytes on the wire of frames that arrived.
    pub arrived_bytes: u64,
    /// RTT of the newest frame that arrived, without the far end's delay. Zero: no sample.
    pub rtt: Duration,
}

/// What limits a path's rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RateLimitedBy {
    /// Nothing yet: the start phase searches for the bottleneck.
    Start,
    /// The sender offers less.
    Sender,
    /// The bottleneck.
    Path,
    /// Congestion marks.
    Marks,
    /// Loss above that at lower rates.
    Loss,
    /// A queue kept by others.
    Others,
    /// The configured maximum.
    Most,
}

impl RateLimitedBy {
    /// Name for reports.
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
    /// Rate of one total between this point and a later one, in bytes per second. `None`: no time
    /// has passed.
    fn rate_to(&self, later: &Point, total: fn(&Heard) -> u64) -> Option<f64> {
        let seconds = later.at.since(self.at).as_secs_f64();
        let bytes = total(&later.heard).saturating_sub(total(&self.heard));
        (seconds > 0.0).then(|| bytes as f64 / seconds)
    }
}

/// Rates of a level in bytes per second: sent, and arrived of those.
#[derive(Clone, Copy, Debug)]
struct Measured {
    sent: f64,
    arrived: f64,
    /// Frames that arrived.
    frames: u64,
}

impl Measured {
    /// `true` if fewer bytes arrived than sent by more than chance explains.
    fn falls_short(&self) -> bool {
        self.frames >= LEVEL_FRAMES / 2 && self.arrived < START_ARRIVES * self.sent
    }
}

/// Minimum RTT of the previous window and of this one.
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

    /// Starts another window of this length. Without a sample, the previous minimum remains.
    fn turn(&mut self, now: Instant, window: Duration) {
        if let Some(this) = self.this.take() {
            self.before = this;
        }
        self.samples = 0;
        self.ends = now + window;
    }
}

/// Share of additional sending that arrives: a regression through 0 with exponential forgetting.
#[derive(Clone, Copy, Debug)]
struct Gain {
    products: f64,
    squares: f64,
}

impl Gain {
    /// A gain with the initial value `gain`, which samples soon outweigh.
    fn of(gain: f64) -> Self {
        let squares = STEP * STEP;
        Gain { products: gain * squares, squares }
    }

    /// Adds a comparison: the sending rate changed by the fraction `sent`, the arrival rate by
    /// `arrived`. Their ratio is limited to `reach` from 0.5. A great change counts no more than
    /// two steps of `step`.
    fn note(&mut self, sent: f64, arrived: f64, step: f64, reach: f64) {
        let times =
            if sent.abs() < 1e-6 { 0.0 } else { (arrived / sent).clamp(0.5 - reach, 0.5 + reach) };
        let weight = sent.abs().min(2.0 * step).powi(2);
        self.squares = MEMORY * self.squares + weight;
        self.products = MEMORY * self.products + weight * times;
    }

    /// The gain, 0 to 1.
    fn get(&self) -> f64 {
        if self.squares < 1e-12 { 0.5 } else { (self.products / self.squares).clamp(0.0, 1.0) }
    }
}

/// The controller; see the module documentation.
#[derive(Clone, Debug)]
pub struct PathRate {
    rng: SplitMix64,
    most: Option<BitRate>,
    /// In-flight limit in bytes, and the same with the step of this level.
    under_way: f64,
    level: f64,
    is_starting: bool,
    rtt_least: Option<LeastRtt>,
    /// Smoothed RTT, over about eight samples.
    rtt: Duration,
    /// Minimum RTT of the last quarter of a round trip, or two.
    rtt_lately: Option<LeastRtt>,
    /// Beginning of this level, and the first arrival of one of its frames.
    began: Option<Point>,
    heard_first: Option<Point>,
    /// Sending rate of the level whose arrival is being measured, and the first arrival of its
    /// frames.
    awaited: Option<(f64, Point)>,
    measured: Option<Measured>,
    gain: Gain,
    growth: f64,
    /// Consecutive unimpeded levels.
    free: u32,
    /// Consecutive RTT samples of the start phase that show a queue.
    start_queued: u32,
    /// Queue of the last level, in round trips.
    queue: f64,
    queue_delay: Duration,
    rivals: Rivals,
    throughput: Throughput,
    /// Levels for which marks remain free.
    marked_wait: u32,
    /// Minimum loss of the previous group of levels and of this one, and the levels left in this
    /// one.
    loss_least: (f64, f64),
    loss_levels: u32,
    /// Levels left below the bottleneck, and the factor by which they are below.
    drain: u32,
    drain_to: f64,
    /// Levels since the last drain.
    since_drain: u32,
    has_surged: bool,
    limited_by: RateLimitedBy,
}

impl PathRate {
    /// Creates a controller without measurements that never exceeds `most`. Senders that share a
    /// bottleneck need different seeds.
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
            rivals: Rivals::Alike(Queued::default()),
            throughput: Throughput::default(),
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

    /// Starts again, with another seed, after the path did not answer. What it had remains known:
    /// other senders may have crowded it out.
    pub fn restart(&mut self, seed: u64) {
        let PathRate { most, rtt_least, rivals, throughput, .. } = *self;
        *self = PathRate { rtt_least, rivals, throughput, ..PathRate::new(seed, most) };
    }

    /// Adds an RTT sample from another source than [`PathRate::hear`], for example before anything
    /// was sent.
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

    /// Handles an acknowledgement.
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

    /// Measures a level, all of which has arrived, and compares it with the previous one.
    fn compare(&mut self, first_of_next: &Point) {
        let Some((sent, first)) = self.awaited.take() else { return };
        let Some(arrived) = first.rate_to(first_of_next, |heard| heard.arrived_bytes) else {
            return;
        };
        let frames = first_of_next.heard.arrived.saturating_sub(first.heard.arrived);
        let this = Measured { sent, arrived, frames };
        let is_uncrowded = !self.is_starting
            && self.rivals.are_absent(self.queue)
            && self.gain.get() < GAIN_CROWDED;
        self.throughput.note(arrived, is_uncrowded);
        let Some(before) = self.measured.replace(this) else { return };
        let reach = if self.is_foreign() { REACH_FOREIGN } else { REACH };
        let change = |before: f64, this: f64| 2.0 * (this - before) / (this + before).max(1.0);
        let arrived = change(before.arrived, this.arrived);
        self.gain.note(change(before.sent, this.sent), arrived, self.step(), reach);
    }

    /// Ends the start phase if there is a queue, or if less arrives than is sent.
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

    /// `true` if this level's losses exceed what chance explains.
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
        let step = if self.rng.chance(0.5) { self.step() } else { -self.step() };
        self.level = if self.drain > 0 {
            self.drain -= 1;
            self.under_way * self.drain_to
        } else if self.is_starting {
            self.under_way
        } else {
            self.under_way * (1.0 + step)
        };
        self.awaited = Some((sent, first));
        self.began = Some(*point);
        self.heard_first = None;
    }

    /// Updates the in-flight limit.
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
        self.look_for_others(point.at, rtts, lost, arrived);
        let is_foreign = self.is_foreign();
        let gain = self.gain.get();
        let price_max = if self.queue > LONG_QUEUE { PRICE_LONG } else { PRICE_MAX };
        let queue_price = (PRICE * self.queue).min(price_max);
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
            (GROWTH_FOREIGN * self.share_missing() - PRICE_LOST * lost / (lost + arrived)) * rtts
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

    /// Decides who keeps the queue.
    fn look_for_others(&mut self, now: Instant, rtts: f64, lost: f64, arrived: f64) {
        let level = Level { queue: self.queue, rtts, lost, arrived };
        let until = now + self.window().times(FOREIGN_WINDOWS);
        let (rivals, turn) = self.rivals.note(now, &level, until, self.throughput.is_regained());
        self.rivals = rivals;
        match turn {
            Turn::None if self.is_foreign() => self.throughput.doubt(rtts),
            Turn::None => {}
            Turn::OthersCame => {
                if let Some(earlier) = self.throughput.earlier() {
                    let half = HALF * earlier * self.rtt.as_secs_f64();
                    self.under_way = bound(self.under_way.max(half));
                }
                self.gain = Gain::of(HALF);
                // Senders of this kind that the same queue misleads test it together.
                let window = self.window();
                if let Some(least) = &mut self.rtt_least {
                    least.ends = now + window;
                }
            }
            Turn::OthersStay { held } => self.under_way = held,
            Turn::GivenUp => self.throughput = Throughput::default(),
        }
    }

    /// Share of the bottleneck that is missing to half of it: by the gain, and by the throughput
    /// before others came, if known. Negative: the sender has more.
    fn share_missing(&self) -> f64 {
        let by_gain = self.gain.get() - HALF;
        match self.throughput.part() {
            Some(part) if self.gain.get() < GAIN_ROOM => GAIN_WEIGHT * by_gain + HALF - part,
            _ => by_gain,
        }
    }

    /// `true` if the queue is attributed to others.
    fn is_foreign(&self) -> bool {
        matches!(self.rivals, Rivals::Foreign { .. })
    }

    /// Relative distance of a level from the in-flight limit.
    fn step(&self) -> f64 {
        if self.is_foreign() { STEP_FOREIGN } else { STEP }
    }

    /// Length of a window of the minimum RTT.
    fn window(&self) -> Duration {
        WINDOW.max(self.rtt.times(WINDOW_RTTS))
    }

    fn marked_price(&mut self, marked: f64) -> f64 {
        if self.marked_wait > 0 {
            self.marked_wait -= 1;
            return 0.0;
        }
        self.marked_wait = if marked > 0.0 { MARKED_WAIT } else { 0 };
        PRICE_MARKED * marked
    }

    /// Price of loss, 0 to 0.1: half of the loss beyond one per cent plus twice the recent minimum.
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

    /// Starts another window of the minimum RTT when one ends, with a look at the path without this
    /// sender's queue.
    fn turn_window(&mut self, now: Instant) {
        let window = self.window();
        let Some(least) = &mut self.rtt_least else { return };
        if now < least.ends || self.is_starting {
            return;
        }
        least.turn(now, window);
        if !self.is_foreign() {
            self.throughput.turn();
        }
        self.rivals = self.rivals.tested(self.under_way);
        self.go_below();
    }

    /// Starts a drain: two levels without a queue of its own.
    fn go_below(&mut self) {
        let own = (1.0 - self.gain.get()).max(0.2);
        self.drain = 2;
        self.drain_to = (1.0 - 1.5 * self.queue / own - 2.0 * STEP).max(0.5);
        self.since_drain = 0;
        self.has_surged = false;
    }

    /// Drains after a surge of the queue, such as at the start of another sender. All senders see
    /// it, and if all drain together, they see the path empty.
    fn heed_surge(&mut self) {
        self.since_drain = self.since_drain.saturating_add(1);
        self.has_surged |= self.queue > SURGE;
        if self.has_surged && self.queue < SURGE / 2.0 && self.since_drain > SURGES_APART {
            self.go_below();
        }
    }

    /// Queue that an RTT sample shows, in round trips.
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

    /// Rate to pace to, in bits per second on the wire.
    pub fn rate(&self) -> BitRate {
        let bps = (self.bytes_per_s() * 8.0).clamp(1e3, 1e15) as u64;
        BitRate::from_bps(bps).unwrap_or(BitRate::from_bps(1000).expect("not zero"))
    }

    /// Limit of bytes on the wire in flight, for when acknowledgements stop: one and a half times
    /// the need of the rate, and 128 KiB.
    pub fn in_flight_max(&self) -> u64 {
        (1.5 * self.level) as u64 + 128 * 1024
    }

    /// Delivery rate as last measured, in bits per second on the wire. `None` without a
    /// measurement.
    pub fn delivered(&self) -> Option<BitRate> {
        self.measured
            .and_then(|measured| BitRate::from_bps((measured.arrived * 8.0).min(1e15) as u64))
    }

    /// Minimum RTT of the last windows; zero before the first sample.
    pub fn rtt_least(&self) -> Duration {
        self.rtt_least.map_or(Duration::ZERO, |least| least.get())
    }

    /// Queuing delay at the bottleneck, over the last level.
    pub fn queue_delay(&self) -> Duration {
        self.queue_delay
    }

    /// Share of additional sending that arrives, 0 to 1.
    pub fn gain(&self) -> f64 {
        self.gain.get()
    }

    /// What limits the rate.
    pub fn limited_by(&self) -> RateLimitedBy {
        self.limited_by
    }
}

fn bound(bytes: f64) -> f64 {
    if bytes.is_finite() { bytes.clamp(UNDER_WAY_MIN, UNDER_WAY_MAX) } else { UNDER_WAY_MIN }
}
