# What the host can ask for. Port 1 brings this and then commands, and takes a line for each job that has ended;
# port 2, descriptor 3, takes what was asked for by fetch.

# job NUMBER SECONDS COMMAND: runs it in a session of its own, of which nothing is left when it ends.
job() {
    # fetch may come before the job runs.
    : >"/jobs/$1.out" 2>"/jobs/$1.err"
    (
        setsid timeout -s KILL "$2" dash -c "$3" </dev/null >>"/jobs/$1.out" 2>>"/jobs/$1.err" 3<&- &
        group=$!
        echo $group >"/jobs/$1.group"
        wait $group
        code=$?
        kill -KILL -$group
        echo "done $1 $code"
    ) 2>/dev/null &
}

# stop NUMBER SIGNAL
stop() {
    # It may not run yet, and a job that has been forgotten never will.
    [ -e "/jobs/$1.out" ] || return
    until [ -s "/jobs/$1.group" ]; do sleep 0.02; done
    kill -"$2" -"$(cat "/jobs/$1.group")" 2>/dev/null
}

# fetch NUMBER: what it has written so far, each stream after a line with its length.
fetch() {
    for stream in out err; do
        size=$(wc -c <"/jobs/$1.$stream")
        echo "$size" >&3
        head -c "$size" "/jobs/$1.$stream" >&3
    done
}

# forget NUMBER
forget() {
    rm -f "/jobs/$1".*
}

echo ready
