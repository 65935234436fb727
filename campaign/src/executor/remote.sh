# Runs a program as the leader of this session. When standard input ends, because the campaign
# closes it or the connection is lost, the program gets SIGINT, and 2 s later SIGKILL.
me=$$
stat() { sed "s/.*) //" /proc/$me/stat 2>/dev/null; }
born=$(stat | cut -d" " -f20)
lives() { [ "$(stat | cut -d" " -f20)" = "$born" ]; }
end() { kill -$1 -$me || kill -$1 $me; }
# Waits for a listener on the TCP port with this hexadecimal number.
listens() {
    until grep -qs ":$1 [0-9A-F]*:0000 0A" /proc/$me/net/tcp /proc/$me/net/tcp6; do
        lives || exit
        sleep 0.04
    done
}
# Waits until the program has slept for $1 looks without using the processor, or has used it for
# more than $2 ticks.
sleeps() {
    quiet=0 last=
    while [ $quiet -lt $1 ]; do
        now=$(stat | cut -d" " -f1,12,13)
        [ -n "$now" ] && lives || exit
        if [ "$now" = "S $last" ]; then quiet=$((quiet + 1)); else quiet=0; fi
        last=${now#* }
        [ $((${last% *} + ${last#* })) -gt $2 ] && break
        sleep 0.04
    done
}
exec 3<&0
(
    exec >/dev/null 2>&1
    cat <&3
    lives && end INT && sleep 2
    lives && end KILL
) &
exec 3<&-
