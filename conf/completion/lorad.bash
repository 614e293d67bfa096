# bash completion for lorad and loratop: the commands and options that their --help names, else files
_lorad() {
    local said
    COMPREPLY=()
    case $3 in -c | --config | --dir | --model | --record | --replay) return ;; esac
    said=$("$1" --help 2>/dev/null | grep -oE '^  lorad [a-z]+|--[a-z][a-z-]+' | sed 's/^  lorad //' | sort -u)
    COMPREPLY=($(compgen -W "$said" -- "$2"))
}
complete -o default -F _lorad lorad loratop
