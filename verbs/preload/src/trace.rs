//! Traces of the program's verbs calls, in the trace-event format of Chrome and Perfetto.
//!
//! [`ENV_TRACE`] names the file, which holds the opening bracket of a JSON array: each process
//! appends events to it, and viewers need no closing bracket. At its end a process says on stderr
//! what share of its time it spent in which calls.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use longhaul_abi_defs::{IBV_WC_RECV, ibv_wc};
use longhaul_rdma::attach::ENV_TRACE;
use longhaul_rnic::SendWr;

/// Events of a thread after which it writes them.
const BUFFERED_MAX: usize = 4096;
/// Time after which buffered events are written with the next one.
const BUFFERED_FOR: Duration = Duration::from_millis(200);
/// Longest time between two polls without a completion that become one event.
const POLL_GAP: Duration = Duration::from_millis(1);
/// Time between two events of the counters of a thread's requests.
const COUNT_EVERY: Duration = Duration::from_millis(1);

const PROCESS_NAME: &str = "/proc/self/comm";

const UNKNOWN: u8 = 0;
const OFF: u8 = 1;
const ON: u8 = 2;
/// Whether calls are traced: every entry point reads it.
static STATE: AtomicU8 = AtomicU8::new(UNKNOWN);
static TRACE: OnceLock<Trace> = OnceLock::new();

/// What a call moved.
#[derive(Clone, Copy, Default)]
struct Moved {
    /// Send requests that were posted, and their bytes.
    posted: u32,
    bytes: u64,
    /// Completions that were taken, and those among them of send requests.
    completed: u32,
    sends_completed: u32,
}

thread_local! {
    /// Entry points that this thread is in: a call within a call is not counted again.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
    static MOVED: Cell<Moved> = const { Cell::new(Moved {
        posted: 0, bytes: 0, completed: 0, sends_completed: 0,
    }) };
    static BUFFER: RefCell<Option<Arc<Mutex<Buffer>>>> = const { RefCell::new(None) };
}

/// The trace of this process.
struct Trace {
    file: File,
    /// Start of the trace on this process's clock, and the same time on the machine's in ns.
    began: Instant,
    began_ns: u64,
    buffers: Mutex<Vec<Arc<Mutex<Buffer>>>>,
}

/// Calls and their time.
#[derive(Clone, Copy, Default)]
struct Spent {
    calls: u64,
    time: Duration,
}

struct Event {
    name: &'static str,
    start: Duration,
    end: Duration,
    /// Time within the calls, which are several if they are polls without a completion.
    busy: Duration,
    calls: u64,
    moved: Moved,
}

/// The events of one thread.
struct Buffer {
    thread: i32,
    events: Vec<Event>,
    written_at: Duration,
    spent: BTreeMap<&'static str, Spent>,
    posted: u64,
    completed: u64,
    counted_at: Duration,
}

/// A call that is being traced.
pub(crate) struct Call {
    name: &'static str,
    start: Instant,
}

/// Begins the trace of a call, if calls are traced; `closure` is the type name of its body.
#[inline]
pub(crate) fn begin(closure: &'static str) -> Option<Call> {
    match STATE.load(Ordering::Relaxed) {
        OFF => None,
        state => begin_traced(state, closure),
    }
}

#[cold]
fn begin_traced(state: u8, closure: &'static str) -> Option<Call> {
    if state == UNKNOWN && !start() {
        return None;
    }
    let depth = DEPTH.try_with(|depth| depth.replace(depth.get() + 1)).ok()?;
    (depth == 0).then(|| Call { name: name(closure), start: Instant::now() })
}

/// Ends the trace of a call.
#[inline]
pub(crate) fn end(call: Option<Call>) {
    if STATE.load(Ordering::Relaxed) == ON {
        end_traced(call);
    }
}

#[cold]
fn end_traced(call: Option<Call>) {
    // A thread that ends has no variables any more.
    let _ = DEPTH.try_with(|depth| depth.set(depth.get().saturating_sub(1)));
    let (Some(call), Some(trace)) = (call, TRACE.get()) else { return };
    let now = Instant::now();
    let moved = MOVED.try_with(Cell::take).unwrap_or_default();
    let event = Event {
        name: call.name,
        start: call.start - trace.began,
        end: now - trace.began,
        busy: now - call.start,
        calls: 1,
        moved,
    };
    let _ = BUFFER.try_with(|buffer| {
        let mut buffer = buffer.borrow_mut();
        let buffer = buffer.get_or_insert_with(|| trace.buffer());
        let mut buffer = buffer.lock().unwrap_or_else(PoisonError::into_inner);
        buffer.add(event);
        let is_due = buffer.events.len() >= BUFFERED_MAX
            || buffer.events.last().is_some_and(|last| last.end > buffer.written_at + BUFFERED_FOR);
        if is_due {
            trace.write(&mut buffer);
        }
    });
}

/// Says that the current call posted a send request.
#[inline]
pub(crate) fn posted(request: &SendWr<'_>) {
    if STATE.load(Ordering::Relaxed) == ON {
        let bytes: u64 = request.segments.iter().map(|segment| u64::from(segment.len)).sum();
        moved(|moved| {
            moved.posted += 1;
            moved.bytes += bytes;
        });
    }
}

/// Says that the current call took a completion.
#[inline]
pub(crate) fn completed(wc: &ibv_wc) {
    if STATE.load(Ordering::Relaxed) == ON {
        let is_send = wc.opcode.0 & IBV_WC_RECV.0 == 0;
        moved(|moved| {
            moved.completed += 1;
            moved.sends_completed += u32::from(is_send);
        });
    }
}

#[cold]
fn moved(change: impl FnOnce(&mut Moved)) {
    let _ = MOVED.try_with(|cell| {
        let mut moved = cell.get();
        change(&mut moved);
        cell.set(moved);
    });
}

/// The entry point in the type name of a closure: `…::posting::post_send::{{closure}}`.
fn name(closure: &'static str) -> &'static str {
    closure.split("::").filter(|part| !part.starts_with('{')).last().unwrap_or(closure)
}

/// Opens the trace that the environment names; whether there is one.
fn start() -> bool {
    static START: Mutex<()> = Mutex::new(());
    let _turn = START.lock().unwrap_or_else(PoisonError::into_inner);
    if STATE.load(Ordering::Relaxed) != UNKNOWN {
        return STATE.load(Ordering::Relaxed) == ON;
    }
    let trace = std::env::var_os(ENV_TRACE).filter(|path| !path.is_empty()).and_then(|path| {
        let file = OpenOptions::new().append(true).open(&path);
        let refused = |error: &std::io::Error| {
            eprintln!("longhaul: no trace in {}: {error}", path.display());
        };
        file.inspect_err(refused).ok()
    });
    let Some(file) = trace else {
        STATE.store(OFF, Ordering::Relaxed);
        return false;
    };
    let (began, began_ns) = (Instant::now(), machine_ns());
    let _ = TRACE.set(Trace { file, began, began_ns, buffers: Mutex::default() });
    STATE.store(ON, Ordering::Relaxed);
    // SAFETY: both functions live as long as the process.
    unsafe {
        libc::atexit(at_exit);
        libc::pthread_atfork(None, None, Some(in_child));
    }
    true
}

/// The machine's monotonic clock, which all processes share, in nanoseconds.
fn machine_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the clock exists, and there is space for a time.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Writes what is buffered, and says where the time went.
extern "C" fn at_exit() {
    let Some(trace) = TRACE.get() else { return };
    let whole = trace.began.elapsed();
    STATE.store(OFF, Ordering::Relaxed);
    let mut all: BTreeMap<&'static str, Spent> = BTreeMap::new();
    let buffers = trace.buffers.lock().unwrap_or_else(PoisonError::into_inner);
    for buffer in buffers.iter() {
        let mut buffer = buffer.lock().unwrap_or_else(PoisonError::into_inner);
        trace.write(&mut buffer);
        for (name, spent) in &buffer.spent {
            let sum = all.entry(name).or_default();
            sum.calls += spent.calls;
            sum.time += spent.time;
        }
    }
    if !all.is_empty() {
        eprintln!("longhaul: {}", split(&name_in(PROCESS_NAME), whole, &all));
    }
}

/// Forgets the parent's events: it writes them itself.
extern "C" fn in_child() {
    let Some(trace) = TRACE.get() else { return };
    let held = |error: &TryLockError<_>| matches!(error, TryLockError::WouldBlock);
    // Another thread of the parent may hold a lock, and does not exist here.
    match trace.buffers.try_lock() {
        Ok(mut buffers) => buffers.clear(),
        Err(error) if held(&error) => STATE.store(OFF, Ordering::Relaxed),
        Err(_) => {}
    }
    let _ = BUFFER.try_with(|buffer| buffer.try_borrow_mut().map(|mut buffer| buffer.take()));
}

/// `ib_write_bw: 71.2 % poll_cq (5123 calls), 12.0 % post_send (1000 calls), …`.
fn split(program: &str, whole: Duration, all: &BTreeMap<&'static str, Spent>) -> String {
    let mut calls: Vec<_> = all.iter().collect();
    calls.sort_by_key(|(_, spent)| std::cmp::Reverse(spent.time));
    let percent = |time: Duration| 100.0 * time.as_secs_f64() / whole.as_secs_f64().max(1e-9);
    let mut text = format!("{program}: of {:.3} s since its first verb", whole.as_secs_f64());
    for (name, spent) in calls.iter().take(6) {
        let (share, calls) = (percent(spent.time), spent.calls);
        // Writing to a String cannot fail.
        let _ = write!(text, ", {share:.1} % {name} ({calls} calls)");
    }
    text
}

/// Name of a process or thread, fit for a JSON string.
fn name_in(path: &str) -> String {
    let name = std::fs::read_to_string(path).unwrap_or_default();
    name.trim().replace(|c: char| c == '"' || c == '\\' || c.is_control(), "_")
}

impl Trace {
    /// A buffer for the calling thread, which begins with the names of process and thread.
    fn buffer(&self) -> Arc<Mutex<Buffer>> {
        // SAFETY: takes no arguments.
        let thread = unsafe { libc::gettid() };
        let name = name_in(&format!("/proc/self/task/{thread}/comm"));
        let pid = std::process::id();
        let mut text = String::new();
        for (what, name) in [("process_name", &name_in(PROCESS_NAME)), ("thread_name", &name)] {
            let _ = writeln!(
                text,
                "{{\"name\":\"{what}\",\"ph\":\"M\",\"pid\":{pid},\"tid\":{thread},\
                 \"args\":{{\"name\":\"{name}\"}}}},"
            );
        }
        self.append(&text);
        let buffer = Arc::new(Mutex::new(Buffer {
            thread,
            events: Vec::new(),
            written_at: self.began.elapsed(),
            spent: BTreeMap::new(),
            posted: 0,
            completed: 0,
            counted_at: Duration::ZERO,
        }));
        let mut buffers = self.buffers.lock().unwrap_or_else(PoisonError::into_inner);
        buffers.push(Arc::clone(&buffer));
        buffer
    }

    fn write(&self, buffer: &mut Buffer) {
        let events = std::mem::take(&mut buffer.events);
        let mut text = String::with_capacity(events.len() * 128);
        let pid = std::process::id();
        for event in &events {
            event.write(pid, buffer.thread, self.began_ns, &mut text);
            buffer.posted += u64::from(event.moved.posted);
            buffer.completed += u64::from(event.moved.sends_completed);
            let has_moved = event.moved.posted + event.moved.sends_completed > 0;
            if has_moved && event.end >= buffer.counted_at + COUNT_EVERY {
                buffer.counted_at = event.end;
                let (at, thread) = (microseconds(self.began_ns, event.end), buffer.thread);
                let (posted, completed) = (buffer.posted, buffer.completed);
                let _ = writeln!(
                    text,
                    "{{\"name\":\"send requests of thread {thread}\",\"ph\":\"C\",\"ts\":{at},\
                     \"pid\":{pid},\"args\":{{\"posted\":{posted},\"completed\":{completed}}}}},"
                );
            }
        }
        buffer.written_at = self.began.elapsed();
        self.append(&text);
    }

    /// Appends whole lines; several processes append to the file.
    fn append(&self, text: &str) {
        if let Err(error) = (&self.file).write_all(text.as_bytes())
            && STATE.swap(OFF, Ordering::Relaxed) == ON
        {
            eprintln!("longhaul: the trace ends: {error}");
        }
    }
}

impl Buffer {
    fn add(&mut self, event: Event) {
        let spent = self.spent.entry(event.name).or_default();
        spent.calls += 1;
        spent.time += event.busy;
        if event.is_empty_poll()
            && let Some(last) = self.events.last_mut()
            && last.is_empty_poll()
            && event.start < last.end + POLL_GAP
        {
            last.end = event.end;
            last.busy += event.busy;
            last.calls += 1;
            return;
        }
        self.events.push(event);
    }
}

/// Time since the machine's start in microseconds, as in traces.
fn microseconds(began_ns: u64, since: Duration) -> String {
    let ns = began_ns + since.as_nanos() as u64;
    format!("{}.{:03}", ns / 1000, ns % 1000)
}

impl Event {
    fn is_empty_poll(&self) -> bool {
        self.moved.completed == 0 && matches!(self.name, "poll_cq" | "start_poll")
    }

    fn write(&self, pid: u32, thread: i32, began_ns: u64, text: &mut String) {
        let Event { name, moved, calls, .. } = self;
        let (at, lasts) =
            (microseconds(began_ns, self.start), microseconds(0, self.end - self.start));
        let _ = write!(
            text,
            "{{\"name\":\"{name}\",\"cat\":\"verbs\",\"ph\":\"X\",\"ts\":{at},\"dur\":{lasts},\
             \"pid\":{pid},\"tid\":{thread}"
        );
        let mut arguments = Vec::new();
        if moved.posted > 0 {
            arguments.push(format!("\"posted\":{},\"bytes\":{}", moved.posted, moved.bytes));
        }
        if moved.completed > 0 {
            arguments.push(format!("\"completions\":{}", moved.completed));
        }
        if *calls > 1 {
            let busy = microseconds(0, self.busy);
            arguments.push(format!("\"calls\":{calls},\"busy_us\":{busy}"));
        }
        if !arguments.is_empty() {
            let _ = write!(text, ",\"args\":{{{}}}", arguments.join(","));
        }
        text.push_str("},\n");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(name: &'static str, start_us: u64, lasts_us: u64, completed: u32) -> Event {
        let [start, busy] = [start_us, lasts_us].map(Duration::from_micros);
        let moved = Moved { completed, ..Moved::default() };
        Event { name, start, end: start + busy, busy, calls: 1, moved }
    }

    fn buffer() -> Buffer {
        Buffer {
            thread: 7,
            events: Vec::new(),
            written_at: Duration::ZERO,
            spent: BTreeMap::new(),
            posted: 0,
            completed: 0,
            counted_at: Duration::ZERO,
        }
    }

    #[test]
    fn a_closure_is_named_after_its_entry_point() {
        fn entry_point() -> &'static str {
            name(std::any::type_name_of_val(&|| ()))
        }
        assert_eq!(entry_point(), "entry_point");
    }

    #[test]
    fn polls_without_completions_are_one_event_with_the_time_of_each() {
        let mut buffer = buffer();
        for (start, lasts, completed) in
            [(0, 2, 0), (5, 2, 0), (10, 2, 1), (15, 2, 0), (5000, 2, 0)]
        {
            buffer.add(event("poll_cq", start, lasts, completed));
        }
        let events: Vec<_> = buffer
            .events
            .iter()
            .map(|e| (e.calls, e.busy.as_micros(), e.end.as_micros()))
            .collect();
        assert_eq!(events, [(2, 4, 7), (1, 2, 12), (1, 2, 17), (1, 2, 5002)]);
        let spent = buffer.spent["poll_cq"];
        assert_eq!((spent.calls, spent.time.as_micros()), (5, 10));
    }

    #[test]
    fn an_event_is_an_object_of_the_trace_event_format() {
        let mut text = String::new();
        let mut one = event("post_send", 3, 4, 0);
        one.moved = Moved { posted: 2, bytes: 8192, ..Moved::default() };
        one.write(1, 7, 1_000_000, &mut text);
        assert_eq!(
            text,
            "{\"name\":\"post_send\",\"cat\":\"verbs\",\"ph\":\"X\",\"ts\":1003.000,\"dur\":4.000,\
             \"pid\":1,\"tid\":7,\"args\":{\"posted\":2,\"bytes\":8192}},\n"
        );
    }

    #[test]
    fn the_split_names_the_longest_calls_first() {
        let spent = |calls, ms| Spent { calls, time: Duration::from_millis(ms) };
        let all = BTreeMap::from([("poll_cq", spent(9, 700)), ("post_send", spent(4, 100))]);
        assert_eq!(
            split("ib_write_bw", Duration::from_secs(1), &all),
            "ib_write_bw: of 1.000 s since its first verb, 70.0 % poll_cq (9 calls), 10.0 % \
             post_send (4 calls)"
        );
    }
}
